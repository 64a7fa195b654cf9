// One page with everything in it, which render.mjs opens in a browser without a window.
import { defineConfig } from 'vite';

const ours = (name) => new URL(`./src/${name}`, import.meta.url).pathname;

export default defineConfig({
  base: './',
  publicDir: 'node_modules/@grafana/ui/dist/public', // icons
  resolve: {
    alias: [
      // An editor, maps and a rich-text field, which no panel draws with.
      { find: /^(monaco-editor|@monaco-editor\/react|react-monaco-editor)(\/.*)?$/, replacement: ours('nothing.js') },
      { find: /^ol(\/.*)?$/, replacement: ours('nothing.js') },
      { find: /^react-custom-scrollbars-2$/, replacement: ours('scrollbars.js') },
    ],
  },
  define: { 'process.env.NODE_ENV': '"production"', 'process.env': '{}', global: 'globalThis' },
  build: { outDir: process.env.RENDERER_DIST ?? 'dist', emptyOutDir: true, chunkSizeWarningLimit: 10000, minify: false },
  logLevel: 'error',
});
