// Stands in for packages that @grafana/ui can load and no panel needs.
export default {};
export class Geometry {}
export class WKT {}
export const loader = { config() {} };
