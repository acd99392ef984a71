// Times are seconds after the axis begins; they are told as the nodes' own clocks showed them.
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
  86400, 172800, 604800, 1209600, 2419200];
const MONTHS = 'Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split(' ');

function local(time) {
  return new Date((axis.begin + axis.offset + time) * 1000);
}

const two = number => String(number).padStart(2, '0');

function clock(time, seconds = true) {
  const at = local(time);
  return `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}` + (seconds ? `:${two(at.getUTCSeconds())}` : '');
}

function day(time) {
  const at = local(time);
  return axis.dated ? `${at.getUTCFullYear()}-${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}` : '';
}

const stamp = time => `${day(time)} ${clock(time)}`.trim();

function lasting(seconds) {
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const first = parts.findIndex(([size]) => seconds >= size);
  if (first < 0) return `${seconds.toFixed(1)} s`;
  const [size, word] = parts[first];
  const [small, further] = parts[first + 1] || parts[first];
  const rounded = Math.round(seconds / small) * small;
  const rest = rounded % size / small;
  return `${Math.floor(rounded / size)} ${word}` + (rest ? ` ${rest} ${further}` : '');
}

// At most `most` round moments between two times: [time, text].
function ticks(begin, end, most) {
  const step = STEPS.find(s => (end - begin) / s <= most) || 86400 * Math.ceil((end - begin) / most / 86400);
  const shift = axis.begin + axis.offset;
  const found = [];
  for (let time = Math.ceil((begin + shift) / step) * step - shift; time <= end; time += step) {
    const at = local(time);
    const isMidnight = at.getUTCHours() + at.getUTCMinutes() + at.getUTCSeconds() === 0;
    const date = `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]}`;
    const isDay = axis.dated && (step >= 86400 || (isMidnight && step >= 60));
    found.push([time, isDay ? date : clock(time, step < 60)]);
  }
  return found;
}
