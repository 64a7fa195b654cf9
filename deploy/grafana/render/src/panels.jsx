// Each kind of panel that our dashboards have, drawn with the component that Grafana draws it with.
import { FieldType, getDisplayProcessor, getDisplayValueAlignmentFactors, getFieldDisplayValues, renderMarkdown } from '@grafana/data';
import { VizOrientation } from '@grafana/schema';
import { BarGauge, BigValue, PanelContextProvider, Table, TimeSeries, useTheme2, VizRepeater } from '@grafana/ui';

const PANELS = { timeseries: TimeSeriesPanel, stat: StatPanel, bargauge: BarGaugePanel, table: TablePanel, text: TextPanel };

export function PanelBody(props) {
  const Panel = PANELS[props.panel.type];
  return Panel ? <Panel {...props} /> : <Notice {...props} text={`No drawing of panels of type ${props.panel.type}`} />;
}

/** Whether there is something to draw: a number, or in tables a row. */
export function hasContent(panel, frames) {
  if (panel.type === 'table') {
    return frames.some((frame) => frame.length > 0 && frame.fields.length > 0);
  }
  return panel.type === 'text' || hasValues(frames);
}

function hasValues(frames) {
  return frames.some((frame) =>
    frame.fields.some((field) => field.type === FieldType.number && field.values.some((value) => value !== null))
  );
}

export function noValueOf(panel) {
  return panel.fieldConfig?.defaults?.noValue ?? 'No data';
}

function Notice({ width, height, text }) {
  const theme = useTheme2();
  return (
    <div style={{ width, height, display: 'grid', placeItems: 'center', color: theme.colors.text.secondary }}>{text}</div>
  );
}

function TimeSeriesPanel({ panel, frames, width, height, timeRange }) {
  if (!hasValues(frames)) {
    return <Notice width={width} height={height} text={noValueOf(panel)} />;
  }
  const theme = { ...useTheme2() };
  return (
    <PanelContextProvider value={{ eventsScope: '', eventBus: silent, canAddAnnotations: () => false }}>
      <TimeSeries
        frames={frames}
        structureRev={1}
        timeRange={timeRange}
        timeZone="utc"
        width={width}
        height={height}
        legend={panel.options.legend}
        theme={theme}
        options={panel.options}
      />
    </PanelContextProvider>
  );
}

const silent = {
  publish() {},
  getStream: () => ({ pipe: () => ({ subscribe: () => ({ unsubscribe() {} }) }), subscribe: () => ({ unsubscribe() {} }) }),
  subscribe: () => ({ unsubscribe() {} }),
  removeAllListeners() {},
  newScopedBus: () => silent,
};

function displayValues({ panel, frames, replaceVariables }, theme, sparkline) {
  return getFieldDisplayValues({
    fieldConfig: { defaults: {}, overrides: [], ...panel.fieldConfig },
    reduceOptions: panel.options.reduceOptions,
    replaceVariables,
    theme,
    data: frames,
    sparkline,
    timeZone: 'utc',
  });
}

function StatPanel(props) {
  const theme = useTheme2();
  const { panel, width, height } = props;
  const { options } = panel;
  const renderValue = ({ value, alignmentFactors, count, width: wide, height: high, orientation }) => (
    <BigValue
      value={value.display}
      count={count}
      sparkline={options.graphMode === 'none' ? undefined : value.sparkline}
      colorMode={options.colorMode}
      graphMode={options.graphMode}
      justifyMode={options.justifyMode}
      textMode={count > 1 && options.textMode === 'auto' ? 'value_and_name' : options.textMode}
      alignmentFactors={alignmentFactors}
      parentOrientation={orientation}
      text={options.text}
      width={wide}
      height={high}
      theme={theme}
      disableWideLayout={!options.wideLayout}
    />
  );
  return (
    <VizRepeater
      getValues={() => displayValues(props, theme, options.graphMode !== 'none')}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={renderValue}
      width={width}
      height={height}
      source={props.frames}
      itemSpacing={3}
      renderCounter={0}
      autoGrid
      orientation={options.orientation}
    />
  );
}

function BarGaugePanel(props) {
  const theme = useTheme2();
  const { panel, width, height } = props;
  const { options } = panel;
  const renderValue = ({ value, alignmentFactors, orientation, width: wide, height: high, count }) => (
    <BarGauge
      value={count === 1 ? { ...value.display, title: value.display.title } : value.display}
      width={wide}
      height={high}
      orientation={orientation}
      field={value.field}
      text={options.text}
      display={value.view?.getFieldDisplayProcessor(value.colIndex) ?? getDisplayProcessor({ field: { config: value.field }, theme })}
      theme={theme}
      itemSpacing={8}
      lcdCellWidth={12}
      displayMode={options.displayMode}
      alignmentFactors={alignmentFactors}
      showUnfilled={options.showUnfilled}
      valueDisplayMode={options.valueMode}
      namePlacement={options.namePlacement}
    />
  );
  if (!hasValues(props.frames)) {
    return <Notice width={width} height={height} text={noValueOf(panel)} />;
  }
  return (
    <VizRepeater
      getValues={() => displayValues(props, theme, false)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={renderValue}
      width={width}
      height={height}
      source={props.frames}
      itemSpacing={10}
      renderCounter={0}
      minVizHeight={options.minVizHeight}
      maxVizHeight={options.maxVizHeight}
      minVizWidth={options.minVizWidth}
      orientation={options.orientation ?? VizOrientation.Horizontal}
    />
  );
}

function TablePanel({ panel, frames, width, height }) {
  if (!hasContent(panel, frames)) {
    return <Notice width={width} height={height} text={noValueOf(panel)} />;
  }
  return (
    <Table
      data={frames[0]}
      width={width}
      height={height}
      showTypeIcons={false}
      cellHeight={panel.options.cellHeight}
      initialSortBy={panel.options.sortBy}
      fieldConfig={panel.fieldConfig}
    />
  );
}

function TextPanel({ panel, width, height }) {
  return (
    <div
      className="markdown-html"
      style={{ width, height, overflow: 'hidden' }}
      dangerouslySetInnerHTML={{ __html: renderMarkdown(panel.options.content) }}
    />
  );
}
