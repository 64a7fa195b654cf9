// Answers of Prometheus as data frames, shaped as its data source in Grafana shapes them.
import { FieldType, standardTransformers, standardTransformersRegistry, toDataFrame, transformDataFrame } from '@grafana/data';
import { lastValueFrom } from 'rxjs';

// Some stand there twice, under an old name and a new one.
const byId = new Map(Object.values(standardTransformers).map((transformation) => [transformation.id, transformation]));
standardTransformersRegistry.setInit(() =>
  [...byId].map(([id, transformation]) => ({ id, name: transformation.name, transformation }))
);

/** Return the frames of all answers, after the panel's transformations. */
export async function framesOf(answers, panel) {
  const several = answers.length > 1;
  const frames = answers.flatMap((answer) =>
    answer.target.format === 'table' ? [tableOf(answer, several)] : answer.result.map((series) => seriesOf(series, answer))
  );
  const transformations = (panel.transformations ?? []).filter((each) => !each.disabled);
  return lastValueFrom(transformDataFrame(transformations, frames, { interpolate: (text) => text }));
}

function seriesOf({ metric, value, values }, { target, step }) {
  const points = values ?? [value];
  return toDataFrame({
    refId: target.refId,
    fields: [
      {
        name: 'Time',
        type: FieldType.time,
        config: step ? { interval: step * 1000 } : {},
        values: points.map(([seconds]) => seconds * 1000),
      },
      {
        name: 'Value',
        type: FieldType.number,
        labels: metric,
        config: { displayNameFromDS: legendOf(metric, target.legendFormat) },
        values: points.map(([, text]) => numberOf(text)),
      },
    ],
  });
}

function tableOf({ target, result }, several) {
  const labels = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].sort();
  const point = ({ value, values }) => value ?? values[values.length - 1];
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: result.map((row) => point(row)[0] * 1000) },
      ...labels.map((label) => ({
        name: label,
        type: FieldType.string,
        values: result.map(({ metric }) => metric[label] ?? ''),
      })),
      {
        name: several ? `Value #${target.refId}` : 'Value',
        type: FieldType.number,
        values: result.map((row) => numberOf(point(row)[1])),
      },
    ],
  });
}

function legendOf(metric, format) {
  if (format && format !== '__auto') {
    return format.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => metric[label] ?? '');
  }
  const pairs = Object.entries(metric).filter(([name]) => name !== '__name__');
  return `${metric.__name__ ?? ''}{${pairs.map(([name, value]) => `${name}="${value}"`).join(', ')}}`;
}

function numberOf(text) {
  return { '+Inf': Infinity, '-Inf': -Infinity }[text] ?? Number(text);
}
