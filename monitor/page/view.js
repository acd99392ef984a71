// What is shown: a stretch of time, an order of rows, a cursor. Whoever draws listens.
const view = {
  begin: 0,
  end: axis.span,
  rows: data.rows.map((_, row) => row),
  cursor: null, // {time, row}
  selection: null, // the stretch of time being dragged over
  listeners: [],
};

function changed(what) {
  view.listeners.forEach(listener => listener(what));
}

const shortest = () => Math.min(axis.span, Math.max(4 * axis.bin, 1));

function showTime(begin, end) {
  const span = Math.min(axis.span, Math.max(shortest(), end - begin));
  const middle = (begin + end) / 2;
  view.begin = Math.min(Math.max(0, middle - span / 2), axis.span - span);
  view.end = view.begin + span;
  changed('time');
}

// Zoom about a moment, which keeps its place: a factor below 1 shows less.
function zoom(factor, about = (view.begin + view.end) / 2) {
  const span = Math.min(axis.span, Math.max(shortest(), (view.end - view.begin) * factor));
  const part = (about - view.begin) / (view.end - view.begin);
  const begin = about - part * span;
  showTime(begin, begin + span);
}

function move(part) {
  const by = (view.end - view.begin) * part;
  showTime(view.begin + by, view.end + by);
}

function showRows(rows) {
  view.rows = rows;
  changed('rows');
}

function pointAt(time, row) {
  view.cursor = time === null ? null : { time, row };
  changed('cursor');
}

const binAt = time => Math.min(axis.bins - 1, Math.max(0, Math.floor(time / axis.bin)));
