// The panels: events, a heat map a metric, a curve a quantity, and the axis under them all.
const charts = document.getElementById('charts');
const panels = [];
let gutter = 60;
const RIGHT = 8;

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function panel(title, unit, paint) {
  const box = element('div', undefined, 'panel');
  const head = element('div', undefined, 'head');
  head.append(element('h3', unit ? `${title}, ${unit}` : title));
  const legend = element('div', undefined, 'legend');
  head.append(legend);
  const canvas = element('canvas');
  canvas.setAttribute('role', 'img');
  box.append(head, canvas);
  charts.append(box);
  const made = { box, canvas, legend, title, paint, image: null };
  panels.push(made);
  return made;
}

const across = place => place.width - gutter - RIGHT;
const xOf = (place, time) => gutter + (time - view.begin) / (view.end - view.begin) * across(place);

function cut(place, draw) {
  const { context, height } = place;
  context.save();
  context.beginPath();
  context.rect(gutter, 0, across(place), height);
  context.clip();
  draw(context);
  context.restore();
}

function label(place, text, y) {
  const { context } = place;
  context.fillStyle = colour('text');
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  let shown = text;
  while (shown.length > 3 && context.measureText(shown).width > gutter - 8) shown = '…' + shown.slice(2);
  context.fillText(shown, gutter - 6, y);
}

function rules(place) {
  const { context, height } = place;
  cut(place, () => {
    for (const [time, kind] of data.events) {
      if (!RULED.has(kind)) continue;
      const x = Math.round(xOf(place, time)) + 0.5;
      for (const [style, dash, width] of [[colour('back'), [], 3], [COLOURS[kind], [4, 3], 1.5]]) {
        context.strokeStyle = style;
        context.setLineDash(dash);
        context.lineWidth = width;
        context.beginPath();
        context.moveTo(x, 0);
        context.lineTo(x, height);
        context.stroke();
      }
      context.setLineDash([]);
    }
  });
}

function crosshair(place, withRow) {
  if (!view.cursor) return;
  const { context, height } = place;
  cut(place, () => {
    const x = xOf(place, view.cursor.time);
    if (view.selection) {
      const from = xOf(place, view.selection[0]);
      context.fillStyle = colour('text');
      context.globalAlpha = 0.25;
      context.fillRect(Math.min(x, from), 0, Math.abs(x - from), height);
      context.globalAlpha = 1;
    }
    context.strokeStyle = colour('text');
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, height);
    context.stroke();
    if (withRow && view.cursor.row !== null && view.rows.length) {
      const tall = height / view.rows.length;
      const top = view.rows.indexOf(view.cursor.row) * tall;
      for (const [style, more] of [[colour('back'), 1], [colour('text'), 0]]) {
        context.strokeStyle = style;
        context.strokeRect(gutter - 1, top - more, across(place) + 2, Math.max(2, tall) + 2 * more);
      }
    }
  });
}

const kinds = Object.keys(data.kinds).filter(kind => data.events.some(event => event[1] === kind));
if (kinds.length) {
  panel('events', '', self => {
    const place = sized(self.canvas, kinds.length * 17 + 4);
    kinds.forEach((kind, lane) => {
      const y = lane * 17 + 10;
      label(place, data.kinds[kind], y);
      place.context.fillStyle = colour('line');
      place.context.fillRect(gutter, y, across(place), 1);
      for (const [time, own] of data.events) {
        if (own === kind && time >= view.begin && time <= view.end) mark(place.context, kind, xOf(place, time), y);
      }
    });
    crosshair(place, false);
    const counts = kinds.map(kind => `${data.events.filter(event => event[1] === kind).length} ${data.kinds[kind]}`);
    self.canvas.setAttribute('aria-label', `Events: ${counts.join(', ')}. They are listed below the table.`);
  });
}

function rowHeight() {
  const count = view.rows.length;
  return count <= 10 ? Math.max(18 * count, 24) : Math.min(260, Math.max(180, count));
}

// A name for each row; where they have no room but their nodes do, a node's name at its first row.
function rowLabels(height) {
  const names = view.rows.map((row, i) => [i, rowName(row)]);
  if (names.length * 15 <= height || hosts.size === 1) return names;
  const hostOf = i => data.rows[view.rows[i]][0];
  const first = names.filter(([i]) => !i || hostOf(i) !== hostOf(i - 1));
  const together = first.length === new Set(first.map(([i]) => hostOf(i))).size;
  return together ? first.map(([i]) => [i, hostOf(i)]) : names;
}

function heatMap(metric) {
  const made = panel(metric.title, metric.unit, self => {
    const place = sized(self.canvas, rowHeight());
    const { context, height, scale } = place;
    hatched(context, gutter, across(place), height);
    if (!self.image) self.image = raster(metric, Math.round(across(place) * scale), Math.round(height * scale));
    context.imageSmoothingEnabled = false;
    if (view.rows.length) context.drawImage(self.image, gutter, 0, across(place), height);
    const tall = height / Math.max(1, view.rows.length);
    let below = 0;
    for (const [i, name] of rowLabels(height)) {
      const y = Math.max(7, (i + 0.5) * tall);
      if (y < below || y > height - 6) continue;
      label(place, name, y);
      below = y + 15;
    }
    rules(place);
    crosshair(place, true);
    self.canvas.setAttribute('aria-label', described(metric));
  });
  made.metric = metric;
}
data.metrics.forEach(heatMap);

function described(metric) {
  const begin = binAt(view.begin), end = binAt(view.end - 1e-6) + 1;
  let sum = 0, count = 0, low = Infinity, high = -Infinity, cells = 0;
  for (const row of view.rows) {
    for (let bin = begin; bin < end; bin++) {
      cells++;
      const level = metric.levels[row * axis.bins + bin];
      if (level === metric.absent) continue;
      count++;
      sum += level;
      if (level < low) low = level;
      if (level > high) high = level;
    }
  }
  const value = level => told(metric, metric.low + level * metric.step);
  const gaps = `${Math.round(100 * (1 - count / Math.max(1, cells)))} % without a reading`;
  const what = `Heat map of ${metric.title}, ${view.rows.length} rows, ${stamp(view.begin)} to ${stamp(view.end)}`;
  if (!count) return `${what}: no reading.`;
  if (metric.words) return `${what}: at worst ${value(high)}; ${gaps}.`;
  return `${what}: ${value(low)} to ${value(high)}, mean ${value(sum / count)}; ${gaps}.`;
}

function legend(made) {
  const { metric, names } = made;
  made.legend.replaceChildren();
  const add = (text, paint, width) => {
    const part = element('span');
    const canvas = element('canvas');
    canvas.width = width;
    canvas.height = 12;
    canvas.setAttribute('aria-hidden', 'true');
    paint(canvas.getContext('2d'), canvas);
    if (Array.isArray(text)) part.append(element('i', text[0]), canvas, element('i', text[1]));
    else part.append(canvas, element('i', text));
    made.legend.append(part);
  };
  const fill = name => (context, canvas) => {
    context.fillStyle = colour(name);
    context.fillRect(0, 0, canvas.width, 12);
  };
  if (names) {
    names.forEach((curve, i) => add(curve.name, fill(i ? 'curve2' : 'curve'), 12));
    return;
  }
  if (metric.words) metric.words.forEach(word => add(word, fill(word), 12));
  else {
    const digits = metric.high - metric.low < 10 ? 1 : 0;
    const ends = [metric.low, metric.high].map(end => `${end.toFixed(digits)} ${metric.unit}`);
    add(ends, context => VIRIDIS.forEach((hex, i) => {
      context.fillStyle = '#' + hex;
      context.fillRect(i * 5, 0, 5, 12);
    }), VIRIDIS.length * 5);
  }
  add('no reading', context => hatched(context, 0, 16, 12), 16);
}

function curvePanel(several) {
  const made = panel(several[0].name, several[0].unit, self => {
    const place = sized(self.canvas, 110);
    const { context, height } = place;
    const values = several.flatMap(curve => curve.value.filter((value, i) =>
      value !== null && curve.time[i] >= view.begin && curve.time[i] <= view.end));
    let low = Infinity, high = -Infinity;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    if (!values.length) { low = 0; high = 1; }
    const zoomed = view.end - view.begin < axis.span * 0.999;
    if (low >= 0 && !zoomed) low = 0;
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    high += room;
    if (low !== 0) low -= room;
    const yOf = value => height - 4 - (value - low) / (high - low) * (height - 10);
    context.strokeStyle = colour('line');
    context.lineWidth = 1;
    niceBetween(low, high).forEach(value => {
      const y = Math.round(yOf(value)) + 0.5;
      context.beginPath();
      context.moveTo(gutter, y);
      context.lineTo(gutter + across(place), y);
      context.stroke();
      label(place, short(value), Math.min(height - 6, Math.max(7, y)));
    });
    cut(place, () => several.forEach((curve, i) => trace(context, place, curve, yOf, colour(i ? 'curve2' : 'curve'))));
    rules(place);
    crosshair(place, false);
    const ends = values.length ? `from ${short(values[0])} to ${short(values[values.length - 1])}` : 'no values';
    self.canvas.setAttribute('aria-label', `Line chart of ${several.map(curve => curve.name).join(' and ')}, ${stamp(view.begin)} to ${stamp(view.end)}: ${ends}.`);
  });
  if (several.length > 1) made.names = several;
}

function trace(context, place, curve, yOf, style) {
  context.strokeStyle = context.fillStyle = style;
  context.lineWidth = 1.6;
  context.beginPath();
  let open = false;
  curve.value.forEach((value, i) => {
    if (value === null) { open = false; return; }
    const x = xOf(place, curve.time[i]), y = yOf(value);
    if (curve.line) context[open ? 'lineTo' : 'moveTo'](x, y);
    else { context.moveTo(x + 3, y); context.arc(x, y, 3, 0, 7); }
    open = true;
  });
  context[curve.line ? 'stroke' : 'fill']();
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)} k`;
  return `${+value.toPrecision(3)}`;
}

function niceBetween(low, high) {
  const rough = (high - low) / 3;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(n => n * ten).find(s => s >= rough);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high; n++) found.push(+(n * step).toPrecision(12));
  return found;
}

const losses = data.curves.filter(curve => curve.name.endsWith('loss'));
if (losses.length) curvePanel(losses);
data.curves.filter(curve => !losses.includes(curve)).forEach(curve => curvePanel([curve]));

const foot = element('div', undefined, 'panel axis');
const footCanvas = element('canvas');
footCanvas.setAttribute('role', 'img');
foot.append(footCanvas);
charts.append(foot);

function drawAxis() {
  const place = sized(footCanvas, 22);
  const { context } = place;
  context.fillStyle = colour('muted');
  context.strokeStyle = colour('muted');
  context.textBaseline = 'top';
  for (const [time, text] of ticks(view.begin, view.end, Math.max(2, Math.floor(across(place) / 78)))) {
    const x = xOf(place, time);
    context.fillRect(Math.round(x), 0, 1, 4);
    const half = context.measureText(text).width / 2;
    context.textAlign = 'left';
    context.fillText(text, Math.min(place.width - 2 * half, Math.max(0, x - half)), 6);
  }
  footCanvas.setAttribute('aria-label', `Time axis, ${stamp(view.begin)} to ${stamp(view.end)}, ${axis.zone}`);
}

function redraw(what) {
  if (what !== 'cursor') {
    const room = charts.clientWidth;
    gutter = Math.min(150, Math.max(74, Math.round(room * 0.16)));
    panels.forEach(one => { one.image = null; });
  }
  if (what === 'colours') {
    panels.filter(one => one.metric || one.names).forEach(legend);
  }
  panels.forEach(one => one.paint(one));
  drawAxis();
}
