"""Reads a page of metrics from stdin by Prometheus' own client for Python, and prints its samples as a JSON
object: `name{label="value",...}`, labels in their order by name, to the value."""

import json
import sys

from prometheus_client.parser import text_string_to_metric_families

samples = {}
for family in text_string_to_metric_families(sys.stdin.read()):
    for sample in family.samples:
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
        key = f"{sample.name}{{{labels}}}" if labels else sample.name
        if key in samples:
            sys.exit(f"{key} is there twice")
        samples[key] = sample.value
json.dump(samples, sys.stdout)
