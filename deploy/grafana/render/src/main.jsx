// The page: `drawDashboard(request)` draws one dashboard and resolves with what each of its panels shows.
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import { createTheme, dateTime } from '@grafana/data';
import { GlobalStyles, PortalContainer, ThemeContext } from '@grafana/ui';
import { createRoot } from 'react-dom/client';

import { Dashboard, placeOf } from './Dashboard.jsx';
import { withFieldConfig } from './fields.js';
import { framesOf } from './frames.js';
import { hasContent, noValueOf } from './panels.jsx';
import { askAll } from './prometheus.js';
import { fillIn, valuesOf } from './variables.js';

window.__grafana_public_path__ = './'; // where icons are

/** request: { dashboard, from, to (seconds), width, mode: 'dark' | 'light', scrapeInterval (seconds), variables } */
window.drawDashboard = async ({ dashboard, from, to, width, mode, scrapeInterval, variables }) => {
  const theme = createTheme({ colors: { mode } });
  const values = valuesOf(dashboard, variables);
  const replaceVariables = (text) => fillIn(text ?? '', values);
  const timeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: 'now', to: 'now' } };
  const context = { range: { from, to }, values, scrapeInterval };
  const panels = dashboard.panels.filter((panel) => panel.type !== 'row');
  const drawings = {};
  for (const panel of panels) {
    drawings[panel.id] = await prepare(panel, { width, theme, replaceVariables, context });
  }
  Object.assign(document.body.style, { margin: 0, background: theme.colors.background.canvas });
  await fontsLoaded(); // axes are as wide as their labels are in the font that is there
  createRoot(document.getElementById('dashboard')).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Dashboard {...{ dashboard, drawings, width, timeRange, values, replaceVariables }} />
      <PortalContainer />
    </ThemeContext.Provider>
  );
  await settled();
  return panels.map((panel) => reportOf(panel, drawings[panel.id]));
};

async function prepare(panel, { width, theme, replaceVariables, context }) {
  const answers = await askAll(panel, placeOf(panel, width).width, context);
  const good = answers.filter((answer) => !answer.error);
  const frames = withFieldConfig(await framesOf(good, panel), panel, theme, replaceVariables);
  return { frames, answers, errors: answers.filter((answer) => answer.error).map(({ error }) => error) };
}

function fontsLoaded() {
  return Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 12px Inter`)));
}

/** Charts are drawn some frames after React has placed them. */
async function settled() {
  for (let frame = 0; frame < 10; frame += 1) {
    await new Promise((resolve) => requestAnimationFrame(resolve));
  }
}

function reportOf(panel, { frames, answers, errors }) {
  const element = document.querySelector(`[data-panel="${panel.id}"]`);
  return {
    id: panel.id,
    title: panel.title,
    type: panel.type,
    targets: answers.map(({ target, expr, error, result }) => ({
      refId: target.refId,
      expr,
      error: error ?? null,
      series: result?.length ?? 0,
    })),
    errors,
    shows: errors.length ? 'error' : hasContent(panel, frames) ? 'data' : noValueOf(panel),
    text: element.innerText,
    drawn: [...element.querySelectorAll('canvas')].some(isPainted) || element.innerText.trim() !== panel.title,
  };
}

function isPainted(canvas) {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return data.some((channel) => channel !== 0);
}
