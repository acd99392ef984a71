// Drawing on canvases, in CSS pixels; a canvas has as many real ones as the screen.
const VIRIDIS = ['440154', '48186a', '472d7b', '424086', '3b528b', '33638d', '2c728e', '26828e', '21918c',
  '1fa088', '28ae80', '3fbc73', '5ec962', '84d44b', 'addc30', 'd8e219', 'fde725'];
const SHAPES = { start: 'right', checkpoint: 'diamond', restart: 'round', signal: 'down', failure: 'cross', fault: 'plus', end: 'square' };
const COLOURS = { start: '#009e73', checkpoint: '#0072b2', restart: '#e69f00', signal: '#cc79a7', failure: '#d55e00', fault: '#c0304a', end: '' };
const RULED = new Set(['restart', 'failure', 'fault']);
const FONT = '12px system-ui, "DejaVu Sans", sans-serif';

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const parts = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));

// 256 colours, each one number as ImageData has it in memory (little-endian: alpha first).
function ramp(metric) {
  const found = new Uint32Array(256);
  const stops = metric.words ? ['none', 'power', 'heat'].map(name => parts(colour(name)))
    : VIRIDIS.map(hex => parts('#' + hex));
  for (let i = 0; i < 256; i++) {
    const at = i / 255 * (stops.length - 1);
    const low = metric.words ? Math.round(at) : Math.floor(at);
    const high = metric.words ? low : Math.min(low + 1, stops.length - 1);
    const [r, g, b] = stops[low].map((part, k) => Math.round(part + (stops[high][k] - part) * (at - low)));
    found[i] = (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  }
  return found;
}

function sized(canvas, height) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.font = FONT;
  return { context, width, height, scale };
}

function hatched(context, left, width, height) {
  context.save();
  context.beginPath();
  context.rect(left, 0, width, height);
  context.clip();
  context.fillStyle = colour('gap');
  context.fillRect(left, 0, width, height);
  context.strokeStyle = colour('hatch');
  context.lineWidth = 1;
  context.beginPath();
  for (let x = left - height; x < left + width; x += 7) {
    context.moveTo(x, height);
    context.lineTo(x + height, 0);
  }
  context.stroke();
  context.restore();
}

// The heat map of the rows and the time shown, a pixel a cell or several cells a pixel: by their
// mean, or by the highest where a peak must not be smoothed away.
function raster(metric, width, height) {
  const across = Math.max(1, Math.min(width, 4096));
  const down = Math.max(1, Math.min(height, view.rows.length));
  const image = new ImageData(across, down);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = ramp(metric);
  const span = (view.end - view.begin) / axis.bin;
  const first = view.begin / axis.bin;
  const top = Math.round((metric.high - metric.low) / metric.step) || 1;
  const bins = Array.from({ length: across + 1 }, (_, x) => Math.floor(first + span * x / across + 1e-9));
  for (let y = 0; y < down; y++) {
    const from = Math.floor(y * view.rows.length / down);
    const to = Math.max(from + 1, Math.floor((y + 1) * view.rows.length / down));
    for (let x = 0; x < across; x++) {
      const level = together(metric, from, to, bins[x], Math.max(bins[x] + 1, bins[x + 1]));
      if (level >= 0) pixels[y * across + x] = colours[Math.min(255, Math.round(level / top * 255))];
    }
  }
  const canvas = document.createElement('canvas');
  canvas.width = across;
  canvas.height = down;
  canvas.getContext('2d').putImageData(image, 0, 0);
  return canvas;
}

function together(metric, from, to, begin, end) {
  let sum = 0, count = 0, most = -1;
  const last = Math.min(end, axis.bins);
  for (let i = from; i < to; i++) {
    const start = view.rows[i] * axis.bins;
    for (let bin = begin; bin < last; bin++) {
      const level = metric.levels[start + bin];
      if (level === metric.absent) continue;
      sum += level;
      count++;
      if (level > most) most = level;
    }
  }
  return count === 0 ? -1 : metric.worst ? most : sum / count;
}

function mark(context, kind, x, y) {
  const r = 4.5;
  context.fillStyle = COLOURS[kind] || colour('text');
  context.beginPath();
  const path = {
    right: [[-r, -r], [r, 0], [-r, r]],
    down: [[-r, -r], [r, -r], [0, r]],
    diamond: [[0, -r], [r, 0], [0, r], [-r, 0]],
    square: [[-r, -r], [r, -r], [r, r], [-r, r]],
    plus: [[-1.7, -r], [1.7, -r], [1.7, -1.7], [r, -1.7], [r, 1.7], [1.7, 1.7], [1.7, r], [-1.7, r], [-1.7, 1.7], [-r, 1.7], [-r, -1.7], [-1.7, -1.7]],
    cross: [[-r, -2.6], [-2.6, -r], [0, -1.9], [2.6, -r], [r, -2.6], [1.9, 0], [r, 2.6], [2.6, r], [0, 1.9], [-2.6, r], [-r, 2.6], [-1.9, 0]],
  }[SHAPES[kind]];
  if (path) path.forEach(([dx, dy], i) => context[i ? 'lineTo' : 'moveTo'](x + dx, y + dy));
  else context.arc(x, y, r * 0.9, 0, 7);
  context.fill();
}
