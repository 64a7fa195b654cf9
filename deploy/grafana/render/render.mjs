// Draws dashboards in Chromium. Reads one request from standard input, writes pictures, and a report to standard output.
//
// request: { dist, chromium, prometheus, out, pictures: [{ name, dashboard, mode, from, to, width, scrapeInterval, variables }] }
// report: { name: [panel, ...] }, as drawDashboard in src/main.jsx returns them
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';

import { chromium } from 'playwright-core';

const PAGE = 'http://dashboards.invalid/'; // nothing is asked of the network: every request is answered below
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' };
const ARGUMENTS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

async function main() {
  const request = JSON.parse(await readAll(process.stdin));
  const profile = await mkdtemp(path.join(tmpdir(), 'dashboards-'));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: request.chromium,
    args: ARGUMENTS,
    headless: true,
  });
  const report = {};
  try {
    for (const picture of request.pictures) {
      report[picture.name] = await draw(context, picture, request);
    }
  } finally {
    await context.close();
    await rm(profile, { recursive: true, force: true });
  }
  process.stdout.write(JSON.stringify(report));
}

async function draw(context, picture, { dist, prometheus, out }) {
  const page = await context.newPage();
  const faults = [];
  page.on('pageerror', (error) => faults.push(String(error.stack ?? error)));
  await page.setViewportSize({ width: picture.width, height: 1000 });
  await page.route('**/*', (route) => answer(route, dist, prometheus));
  await page.goto(PAGE);
  const report = await page.evaluate((asked) => window.drawDashboard(asked), picture);
  if (faults.length) {
    throw new Error(`${picture.name}: ${faults.join('\n')}`);
  }
  await page.screenshot({ path: path.join(out, `${picture.name}.png`), fullPage: true });
  await page.close();
  return report;
}

async function answer(route, dist, prometheus) {
  const url = new URL(route.request().url());
  if (url.pathname.startsWith('/prometheus/')) {
    const asked = await fetch(prometheus + url.pathname.slice('/prometheus'.length) + url.search);
    await route.fulfill({ status: asked.status, contentType: 'application/json', body: await asked.text() });
    return;
  }
  const name = url.pathname === '/' ? 'index.html' : decodeURIComponent(url.pathname.slice(1));
  const body = await readFile(path.join(dist, name)).catch(() => null);
  const contentType = TYPES[path.extname(name)] ?? 'application/octet-stream';
  await route.fulfill(body === null ? { status: 404, body: '' } : { contentType, body });
}

async function readAll(stream) {
  const chunks = [];
  for await (const chunk of stream) {
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

await main();
