// Putting it together: pointer, wheel and keys; the theme; what is said in words.
const root = document.documentElement;
const tip = document.getElementById('tip');
const readout = document.getElementById('readout');
const themeButton = document.getElementById('theme');
const prefersDark = matchMedia('(prefers-color-scheme: dark)');

document.getElementById('name').textContent = data.name;
document.getElementById('gpus-title').textContent = byName === 'GPU' ? 'GPUs' : 'Nodes';
if (!data.rows.length) document.getElementById('gpus').hidden = true;

function tellRange() {
  const part = view.end - view.begin < axis.span * 0.999 ? '' : 'whole run, ';
  const end = day(view.begin) === day(view.end) ? clock(view.end) : stamp(view.end);
  document.getElementById('range').textContent =
    `${stamp(view.begin)} to ${end}, ${axis.zone}; ${part}${lasting(view.end - view.begin)} shown, ${lasting(axis.bin)} a cell`;
}

// The theme: the system's, until somebody chooses one.
function isDark() {
  return root.dataset.theme ? root.dataset.theme === 'dark' : prefersDark.matches;
}
function themed() {
  themeButton.setAttribute('aria-pressed', String(isDark()));
  redraw('colours');
}
themeButton.addEventListener('click', () => {
  root.dataset.theme = isDark() ? 'light' : 'dark';
  themed();
});
prefersDark.addEventListener('change', themed);

// The cursor's numbers: in words for a screen reader, in a box beside the pointer for the eye.
function nearest(curve, time) {
  let best = null;
  curve.value.forEach((value, i) => {
    if (value === null) return;
    if (best === null || Math.abs(curve.time[i] - time) < Math.abs(curve.time[best] - time)) best = i;
  });
  return best;
}

function pairsAt({ time, row }) {
  const bin = binAt(time);
  const pairs = row === null ? [] : data.metrics.map(metric => [metric.title, told(metric, valueAt(metric, row, bin))]);
  for (const curve of data.curves) {
    const i = nearest(curve, time);
    if (i === null || Math.abs(curve.time[i] - time) > (view.end - view.begin) / 20) continue;
    const step = curve.step[i] === null ? '' : ` (step ${curve.step[i]})`;
    pairs.push([curve.name, `${short(curve.value[i])} ${curve.unit}${step}`]);
  }
  const near = (view.end - view.begin) / 150;
  data.events.filter(event => Math.abs(event[0] - time) <= near).slice(0, 4)
    .forEach(event => pairs.push([clock(event[0]), event[2]]));
  return pairs;
}

function tellCursor(spot) {
  document.querySelectorAll('#gpus tr.chosen').forEach(line => line.classList.remove('chosen'));
  if (!view.cursor) {
    tip.hidden = true;
    readout.textContent = '';
    return;
  }
  const { time, row } = view.cursor;
  const head = row === null ? stamp(time) : `${fullName(row)}, ${stamp(time)}`;
  const pairs = pairsAt(view.cursor);
  const list = element('dl');
  pairs.forEach(([name, value]) => list.append(element('dt', name), element('dd', value)));
  tip.replaceChildren(element('strong', head), list);
  if (row !== null) {
    const line = body.querySelector(`tr[data-row="${row}"]`);
    if (line) line.classList.add('chosen');
  }
  if (!spot) {
    tip.hidden = true;
    readout.textContent = `${head}: ${pairs.map(pair => pair.join(' ')).join('; ')}`;
    return;
  }
  tip.hidden = false;
  const [wide, tall] = [tip.offsetWidth, tip.offsetHeight];
  const left = spot.x + 16 + wide > innerWidth ? spot.x - 16 - wide : spot.x + 16;
  tip.style.left = `${Math.max(4, Math.min(left, innerWidth - wide - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(spot.y + 16, innerHeight - tall - 4))}px`;
}

// Where a pointer is: a moment, and the row where it is over a heat map.
function under(event) {
  const box = charts.getBoundingClientRect();
  const room = box.width - gutter - RIGHT;
  const part = (event.clientX - box.left - gutter) / room;
  const time = view.begin + Math.min(1, Math.max(0, part)) * (view.end - view.begin);
  const one = panels.find(made => made.metric && made.canvas === event.target);
  if (!one || !view.rows.length) return { time, row: null };
  const over = one.canvas.getBoundingClientRect();
  const at = Math.floor((event.clientY - over.top) / over.height * view.rows.length);
  return { time, row: view.rows[Math.min(view.rows.length - 1, Math.max(0, at))] };
}

let pressed = null;
let pending = null;
charts.addEventListener('pointerdown', event => {
  if (event.button !== 0) return;
  pressed = { x: event.clientX, time: under(event).time };
});
charts.addEventListener('pointermove', event => {
  if (pending) cancelAnimationFrame(pending);
  pending = requestAnimationFrame(() => {
    pending = null;
    const { time, row } = under(event);
    view.selection = pressed && Math.abs(event.clientX - pressed.x) > 4 ? [pressed.time, time] : null;
    pointAt(time, row);
    tellCursor({ x: event.clientX, y: event.clientY });
  });
});
addEventListener('pointerup', event => {
  const from = pressed;
  pressed = view.selection = null; // before anything is drawn
  if (from && Math.abs(event.clientX - from.x) > 4) {
    const { time } = under(event);
    showTime(Math.min(time, from.time), Math.max(time, from.time));
  }
});
addEventListener('pointercancel', () => { pressed = view.selection = null; });
charts.addEventListener('pointerleave', () => {
  if (pressed) return;
  if (pending) cancelAnimationFrame(pending);
  pending = null;
  pointAt(null);
  tellCursor(null);
});
charts.addEventListener('dblclick', () => showTime(0, axis.span));
charts.addEventListener('wheel', event => {
  if (!event.ctrlKey && document.activeElement !== charts) return; // the page scrolls
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, under(event).time);
}, { passive: false });

function step(rows, bins) {
  const size = Math.max(axis.bin, (view.end - view.begin) / 200);
  const known = view.cursor || { time: (view.begin + view.end) / 2, row: null };
  const time = Math.min(axis.span - axis.bin / 2, Math.max(0, known.time + bins * size));
  let row = known.row;
  if (view.rows.length) {
    const at = view.rows.indexOf(row);
    row = view.rows[at < 0 ? 0 : Math.min(view.rows.length - 1, Math.max(0, at + rows))];
  }
  if (time < view.begin || time > view.end) move(time < view.begin ? -0.5 : 0.5);
  pointAt(time, row);
  tellCursor(null);
}

const KEYS = {
  '+': () => zoom(0.5, view.cursor ? view.cursor.time : undefined),
  '=': () => zoom(0.5, view.cursor ? view.cursor.time : undefined),
  '-': () => zoom(2),
  '0': () => showTime(0, axis.span),
  Home: () => showTime(0, axis.span),
  ArrowLeft: event => (event.shiftKey ? move(-0.25) : step(0, -1)),
  ArrowRight: event => (event.shiftKey ? move(0.25) : step(0, 1)),
  ArrowUp: () => step(-1, 0),
  ArrowDown: () => step(1, 0),
  PageUp: () => step(-10, 0),
  PageDown: () => step(10, 0),
  Escape: () => { pointAt(null); tellCursor(null); },
};
charts.addEventListener('keydown', event => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(event);
});

const BUTTONS = {
  earlier: () => move(-0.25),
  later: () => move(0.25),
  in: () => zoom(0.5),
  out: () => zoom(2),
  whole: () => showTime(0, axis.span),
};
document.querySelectorAll('[data-do]').forEach(button =>
  button.addEventListener('click', () => BUTTONS[button.dataset.do]()));

// Events and findings, as lists.
function listed(id, items, moreId) {
  const section = document.getElementById(id);
  section.hidden = !items.length;
  const list = section.querySelector('ol');
  const button = moreId && document.getElementById(moreId);
  const most = button ? 100 : items.length;
  list.append(...items.slice(0, most).map(make => make()));
  if (!button || items.length <= most) return;
  button.hidden = false;
  button.textContent = `Show all ${items.length} events`;
  button.addEventListener('click', () => {
    list.append(...items.slice(most).map(make => make()));
    button.hidden = true;
  });
}
listed('events', data.events.map(([time, , text]) => () => {
  const item = element('li');
  item.append(element('time', stamp(time)), ` ${text}`);
  return item;
}), 'more-events');
// The time of a finding shows the charts at that time, with some room around it.
function timeButton([begin, end]) {
  const sameDay = day(begin) === day(end);
  const until = begin === end ? '' : ` to ${sameDay ? clock(end) : stamp(end)}`;
  const button = element('button', stamp(begin) + until, 'when');
  button.type = 'button';
  button.addEventListener('click', () => {
    const room = Math.max(end - begin, 60) / 4;
    showTime(begin - room, end + room);
    document.getElementById('charts-title').scrollIntoView();
  });
  return button;
}
listed('findings', (data.findings || []).map(found => () => {
  const item = element('li', undefined, found.severity);
  const head = element('div');
  head.append(element('b', `${found.severity}: ${found.rule}`), found.where ? `, ${found.where} ` : ' ');
  if (found.time) head.append(timeButton(found.time));
  item.append(head, element('div', found.evidence), element('div', found.suggestion, 'muted'));
  return item;
}));

view.listeners.push(what => {
  redraw(what);
  if (what === 'time') tellRange();
});
new ResizeObserver(() => redraw('size')).observe(charts);
fill();
tellRange();
themed();
