// Values of a dashboard's variables, and their places in expressions and titles, as Grafana fills them in.

const PLACE = /\$(\w+)|\$\{(\w+)(?::(\w+))?\}|\[\[(\w+)\]\]/g;

/** Return name → value of every variable: what is asked for, else what the dashboard was saved with. */
export function valuesOf(dashboard, asked) {
  const values = {};
  for (const variable of dashboard.templating?.list ?? []) {
    const current = asked[variable.name] ?? variable.current?.value ?? '';
    const single = Array.isArray(current) && current.length === 1 ? current[0] : current;
    values[variable.name] = single === '$__all' ? { pattern: variable.allValue ?? '.*' } : single;
  }
  return values;
}

/** Return `text` with its variables filled in; `builtin` holds those that belong to one query. */
export function fillIn(text, values, builtin = {}) {
  return text.replace(PLACE, (place, plain, braced, format, bracketed) => {
    const name = plain ?? braced ?? bracketed;
    if (name in builtin) {
      return builtin[name];
    }
    return name in values ? asPattern(values[name]) : place;
  });
}

/** Return what people see chosen. A data source that nobody chose is the default one. */
export function shown(variable, values) {
  const value = values[variable.name];
  if (value && value.pattern !== undefined) {
    return 'All';
  }
  return Array.isArray(value) ? value.join(' + ') : value || 'default';
}

function asPattern(value) {
  if (value && value.pattern !== undefined) {
    return value.pattern;
  }
  return Array.isArray(value) ? `(${value.map(escaped).join('|')})` : value;
}

function escaped(value) {
  return value.replace(/[\\^$*+?.()|[\]{}]/g, '\\\\$&');
}
