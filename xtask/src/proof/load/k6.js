// What k6 does in `cargo xtask proof load`: at a rate if RATE is given, else as fast as it goes.
import http from 'k6/http';

const vus = Number(__ENV.VUS);
const duration = __ENV.DURATION;
const rate = Number(__ENV.RATE || 0);

const atRate = {
  executor: 'constant-arrival-rate', rate, timeUnit: '1s', duration, preAllocatedVUs: vus,
};
const closed = { executor: 'constant-vus', vus, duration };

export const options = {
  discardResponseBodies: true,
  scenarios: { load: rate > 0 ? atRate : closed },
  summaryTrendStats: ['med', 'p(99)'],
};

export default function () {
  http.get(__ENV.URL);
}

export function handleSummary(data) {
  return { stdout: JSON.stringify(data.metrics) };
}
