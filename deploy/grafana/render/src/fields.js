// A panel's field configuration, applied to its frames by Grafana's own code.
import { applyFieldOverrides, FieldConfigOptionsRegistry, FieldType } from '@grafana/data';

const isNumber = (field) => field.type === FieldType.number;
const isNoTime = (field) => field.type !== FieldType.time;
const always = () => true;

const STANDARD = {
  unit: isNoTime,
  min: isNumber,
  max: isNumber,
  decimals: isNumber,
  thresholds: isNumber,
  color: isNoTime,
  mappings: isNoTime,
  links: isNoTime,
  noValue: always,
  displayName: always,
  description: always,
};

/** Return the frames with units, thresholds, colours and overrides of the panel on their fields. */
export function withFieldConfig(frames, panel, theme, replaceVariables) {
  const fieldConfig = { defaults: {}, overrides: [], ...panel.fieldConfig };
  return applyFieldOverrides({
    data: frames,
    fieldConfig,
    fieldConfigRegistry: registryFor(fieldConfig),
    replaceVariables,
    theme,
    timeZone: 'utc',
  });
}

/** Grafana knows a panel's properties from its plugin; here they are those that the dashboard sets. */
function registryFor({ defaults, overrides }) {
  const overridden = overrides.flatMap((rule) => rule.properties.map((property) => property.id));
  const custom = new Set([
    ...Object.keys(defaults.custom ?? {}).map((name) => `custom.${name}`),
    ...overridden.filter((id) => id.startsWith('custom.')),
  ]);
  return new FieldConfigOptionsRegistry(() => [
    ...Object.entries(STANDARD).map(([id, shouldApply]) => property(id, id, false, shouldApply)),
    ...[...custom].map((id) => property(id, id.slice('custom.'.length), true, always)),
  ]);
}

function property(id, path, isCustom, shouldApply) {
  return { id, path, isCustom, name: id, shouldApply, override: (value) => value, process: (value) => value };
}
