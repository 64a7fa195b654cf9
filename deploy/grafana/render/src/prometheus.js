// Asks Prometheus what a panel's targets say. render.mjs answers requests below /prometheus from the real server.
import { rangeUtil } from '@grafana/data';

import { fillIn } from './variables.js';

const MOST_POINTS = 11000; // of one series, which is Prometheus' own limit

/** Return, for each target, { target, step, result, resultType } or { target, error }. */
export function askAll(panel, width, context) {
  const targets = (panel.targets ?? []).filter((target) => !target.hide);
  return Promise.all(targets.map((target) => ask(target, panel, width, context)));
}

async function ask(target, panel, width, { range, values, scrapeInterval }) {
  const step = stepOf(target, panel, width, range, scrapeInterval);
  const expr = fillIn(target.expr, values, builtins(step, range, scrapeInterval));
  const query = target.instant
    ? new URLSearchParams({ query: expr, time: range.to })
    : new URLSearchParams({
        query: expr,
        start: Math.floor(range.from / step) * step,
        end: Math.floor(range.to / step) * step,
        step,
      });
  const response = await fetch(`/prometheus/api/v1/${target.instant ? 'query' : 'query_range'}?${query}`);
  const answer = await response.json();
  if (answer.status !== 'success') {
    return { target, expr, error: answer.error ?? `HTTP ${response.status}` };
  }
  return { target, expr, step, result: answer.data.result, resultType: answer.data.resultType };
}

/** Seconds between two points: as wide as a pixel, and never below what is scraped or the panel's own minimum. */
function stepOf(target, panel, width, range, scrapeInterval) {
  const asked = target.interval || panel.interval;
  const lowest = asked ? rangeUtil.intervalToSeconds(asked.replace('>', '')) : scrapeInterval;
  const points = Math.min(panel.maxDataPoints || width, MOST_POINTS);
  const ideal = rangeUtil.roundInterval(((range.to - range.from) * 1000) / points) / 1000;
  return Math.max(ideal, lowest);
}

function builtins(step, range, scrapeInterval) {
  const whole = Math.round(range.to - range.from);
  return {
    __interval: `${step}s`,
    __rate_interval: `${Math.max(step + scrapeInterval, 4 * scrapeInterval)}s`,
    __range: `${whole}s`,
    __range_s: `${whole}`,
  };
}
