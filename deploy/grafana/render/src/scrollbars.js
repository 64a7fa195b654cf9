// A CommonJS package whose default export @grafana/ui imports: bundlers differ in what that is.
import scrollbars from 'react-custom-scrollbars-2/lib/index.js';

export const { Scrollbars } = scrollbars;
export default Scrollbars;
