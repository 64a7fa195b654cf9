// A dashboard's rows and panels, in its grid of 24 columns.
import { css } from '@emotion/css';
import { Icon, PanelChrome, useTheme2 } from '@grafana/ui';
import { Component } from 'react';

import { PanelBody } from './panels.jsx';
import { shown } from './variables.js';

const COLUMNS = 24;
const ROW_HEIGHT = 30; // as in Grafana, with GAP between rows
const GAP = 8;
const MARGIN = 16;

export function Dashboard({ dashboard, drawings, width, timeRange, values, replaceVariables }) {
  const theme = useTheme2();
  const panels = dashboard.panels;
  const bottom = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return (
    <div style={{ width, background: theme.colors.background.canvas, padding: MARGIN, boxSizing: 'border-box' }}>
      <Head dashboard={dashboard} values={values} timeRange={timeRange} />
      <div style={{ position: 'relative', height: bottom * (ROW_HEIGHT + GAP) }}>
        {panels.map((panel) => (
          <Placed key={panel.id} panel={panel} width={width - 2 * MARGIN}>
            {(size) =>
              panel.type === 'row' ? (
                <Row title={panel.title} />
              ) : (
                <Panel panel={panel} drawing={drawings[panel.id]} size={size} {...{ timeRange, replaceVariables }} />
              )
            }
          </Placed>
        ))}
      </div>
    </div>
  );
}

/** Return a panel's place and size in pixels, on a dashboard of `width` pixels. */
export function placeOf({ gridPos: { x, y, w, h } }, width) {
  const column = (width - GAP * (COLUMNS - 1)) / COLUMNS;
  return {
    left: Math.round(x * (column + GAP)),
    top: y * (ROW_HEIGHT + GAP),
    width: Math.round(w * column + (w - 1) * GAP),
    height: h * ROW_HEIGHT + (h - 1) * GAP,
  };
}

function Placed({ panel, width, children }) {
  const place = placeOf(panel, width);
  return (
    <div data-panel={panel.id} style={{ position: 'absolute', ...place }}>
      {children(place)}
    </div>
  );
}

function Panel({ panel, drawing, size, timeRange, replaceVariables }) {
  const failed = drawing.errors[0];
  return (
    <PanelChrome
      width={size.width}
      height={size.height}
      title={panel.title}
      description={panel.description}
      displayMode={panel.transparent ? 'transparent' : 'default'}
      statusMessage={failed}
    >
      {(width, height) => (
        <Guarded errors={drawing.errors}>
          <PanelBody {...{ panel, width, height, timeRange, replaceVariables }} frames={drawing.frames} />
        </Guarded>
      )}
    </PanelChrome>
  );
}

/** A component that throws is that panel's error, and no other's. */
class Guarded extends Component {
  state = { failed: false };

  static getDerivedStateFromError() {
    return { failed: true };
  }

  componentDidCatch(error) {
    this.props.errors.push(String(error.stack ?? error));
  }

  render() {
    return this.state.failed ? null : this.props.children;
  }
}

function Row({ title }) {
  const theme = useTheme2();
  const look = css({ display: 'flex', alignItems: 'center', gap: 6, height: ROW_HEIGHT, ...theme.typography.h6 });
  return (
    <div className={look}>
      <Icon name="angle-down" /> {title}
    </div>
  );
}

function Head({ dashboard, values, timeRange }) {
  const theme = useTheme2();
  const box = css({
    display: 'inline-flex',
    height: 32,
    marginRight: 8,
    border: `1px solid ${theme.colors.border.weak}`,
    borderRadius: theme.shape.radius.default,
    fontSize: theme.typography.bodySmall.fontSize,
    alignItems: 'center',
    '& > *': { padding: '0 8px' },
    '& > b': { fontWeight: theme.typography.fontWeightMedium, background: theme.colors.background.secondary, lineHeight: '30px' },
  });
  const visible = (dashboard.templating?.list ?? []).filter((variable) => variable.hide !== 2);
  const minutes = Math.round(timeRange.to.diff(timeRange.from, 'seconds') / 60);
  return (
    <div style={{ paddingBottom: MARGIN }}>
      <div style={{ display: 'flex', justifyContent: 'space-between', paddingBottom: 12 }}>
        <span style={{ ...theme.typography.h4, margin: 0 }}>{dashboard.title}</span>
        <span className={box}>
          <Icon name="clock-nine" />
          <span style={{ paddingLeft: 0 }}>Last {minutes} minutes</span>
        </span>
      </div>
      <div style={{ display: 'flex', justifyContent: 'space-between' }}>
        <div>
          {visible.map((variable) => (
            <span key={variable.name} className={box}>
              <b>{variable.label ?? variable.name}</b>
              <span>{shown(variable, values)}</span>
            </span>
          ))}
        </div>
        <div>
          {(dashboard.links ?? []).map((link) => (
            <span key={link.title} className={box} style={{ marginRight: 0, marginLeft: 8 }}>
              <span>{link.title}</span>
            </span>
          ))}
        </div>
      </div>
    </div>
  );
}
