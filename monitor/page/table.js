// The table: sorted by any column, filtered by name; the heat maps follow its rows.
const FIRST = 200;
const body = document.querySelector('#gpus tbody');
const more = document.getElementById('more');
const filter = document.getElementById('filter');
const byName = data.rows[0] && data.rows[0][1] === null ? 'node' : 'GPU';
const sorting = { column: -1, down: false };
let showAll = false;

function fullName(row) {
  const [host, gpu] = data.rows[row];
  return gpu === null ? host : `${host} GPU ${gpu}`;
}

function heads() {
  const line = document.querySelector('#gpus thead tr');
  [{ title: byName, unit: '' }, ...data.columns].forEach((column, i) => {
    const cell = element('th');
    cell.scope = 'col';
    const button = element('button', column.unit ? `${column.title}, ${column.unit}` : column.title);
    button.type = 'button';
    button.addEventListener('click', () => sortBy(i - 1));
    cell.append(button);
    line.append(cell);
  });
}

// A number column begins with its highest; a second click turns it round.
function sortBy(column) {
  sorting.down = sorting.column === column ? !sorting.down : column >= 0;
  sorting.column = column;
  fill();
}

function ordered() {
  const words = filter.value.trim().toLowerCase();
  const rows = data.rows.map((_, row) => row)
    .filter(row => fullName(row).toLowerCase().includes(words));
  const { column, down } = sorting;
  const sign = down ? -1 : 1;
  if (column < 0) return down ? rows.reverse() : rows;
  return rows.sort((a, b) => {
    const [x, y] = [data.table[a][column], data.table[b][column]];
    if (x === null || y === null) return (x === null) - (y === null) || a - b; // unknown comes last
    return sign * (x - y) || a - b;
  });
}

function fill() {
  const rows = ordered();
  document.querySelectorAll('#gpus thead th').forEach((cell, i) => {
    const isChosen = i - 1 === sorting.column;
    if (isChosen) cell.setAttribute('aria-sort', sorting.down ? 'descending' : 'ascending');
    else cell.removeAttribute('aria-sort');
    const button = cell.firstChild;
    button.textContent = button.textContent.replace(/ [▲▼]$/, '') + (isChosen ? (sorting.down ? ' ▼' : ' ▲') : '');
  });
  const shown = showAll ? rows : rows.slice(0, FIRST);
  body.replaceChildren(...shown.map(tableRow));
  more.hidden = shown.length === rows.length;
  more.textContent = `Show all ${rows.length} rows`;
  document.getElementById('shown').textContent = rows.length === data.rows.length
    ? `${rows.length} ${byName}${rows.length === 1 ? '' : 's'}` : `${rows.length} of ${data.rows.length} ${byName}s`;
  showRows(rows);
}

function tableRow(row) {
  const line = element('tr');
  line.dataset.row = row;
  const name = element('th', fullName(row));
  name.scope = 'row';
  line.append(name, ...data.table[row].map((value, i) =>
    element('td', value === null ? '–' : value.toFixed(data.columns[i].digits))));
  return line;
}

heads();
filter.addEventListener('input', fill);
more.addEventListener('click', () => { showAll = true; fill(); });
body.addEventListener('click', event => {
  const line = event.target.closest('tr');
  if (line) pointAt((view.begin + view.end) / 2, Number(line.dataset.row));
});
