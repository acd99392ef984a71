// What Python packed (monitor/page/data.py), unpacked. Numbers of a metric are levels above its lowest.
const data = JSON.parse(document.getElementById('data').textContent);

function unpacked(metric) {
  const text = atob(metric.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  metric.data = null;
  metric.levels = metric.wide ? new Uint16Array(bytes.buffer) : bytes;
  metric.absent = metric.wide ? 65535 : 255;
}
data.metrics.forEach(unpacked);

const axis = data.axis;
axis.span = axis.bin * axis.bins;
const hosts = new Set(data.rows.map(row => row[0]));

// Of a row of the heat maps, where there is little room.
function rowName(row) {
  const [host, gpu] = data.rows[row];
  if (gpu === null) return host;
  return hosts.size === 1 ? `GPU ${gpu}` : `${host}:${gpu}`;
}

// The number of a row in a bin; null where there is no reading.
function valueAt(metric, row, bin) {
  const level = metric.levels[row * axis.bins + bin];
  return level === metric.absent ? null : metric.low + level * metric.step;
}

function told(metric, value) {
  if (value === null) return 'no reading';
  if (metric.words) return metric.words[Math.round(value)];
  return `${value.toFixed(metric.unit === 'GiB' ? 1 : 0)} ${metric.unit}`;
}
