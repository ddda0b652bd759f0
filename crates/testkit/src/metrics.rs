//! A process's metrics at its admin port, in Prometheus' format.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{Process, RawClient};

/// Far more than any process takes to show its page.
const WITHIN: Duration = Duration::from_secs(30);

impl Process {
    /// Its page of metrics, from the listener that its ports file calls `admin`.
    pub fn metrics(&self) -> Result<String> {
        metrics_at(self.port("admin")?).with_context(|| self.log())
    }

    /// The value of the count `name`, its labels included, on that page.
    pub fn metric(&self, name: &str) -> Result<u64> {
        metric_in(&self.metrics()?, name)
    }
}

/// The page of metrics of the process whose admin port this is.
pub fn metrics_at(admin: SocketAddr) -> Result<String> {
    let request = "GET /metrics HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n";
    let answer = RawClient::exchange(admin, request, WITHIN)?.text();
    match answer.split_once("\r\n\r\n") {
        Some((head, page)) if head.starts_with("HTTP/1.1 200 ") => Ok(page.to_owned()),
        _ => bail!("no page of metrics: {answer}"),
    }
}

/// The value of the metric `name`, its labels included, on a page of metrics.
pub fn metric_in<T: FromStr>(page: &str, name: &str) -> Result<T> {
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.with_context(|| format!("no {name} in:\n{page}"))?;
    value.parse().ok().with_context(|| format!("{name} is {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# TYPE a_total counter\na_total 7\na_total_more 8\nb{c=\"d\"} 0.5\n";

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        assert_eq!(metric_in::<u64>(PAGE, "a_total").unwrap(), 7);
        assert!((metric_in::<f64>(PAGE, "b{c=\"d\"}").unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let error = metric_in::<u64>(PAGE, "a").unwrap_err().to_string();
        assert!(error.starts_with("no a in:\n# TYPE"), "{error}");
        assert_eq!(
            metric_in::<u64>(PAGE, "b{c=\"d\"}").unwrap_err().to_string(),
            "b{c=\"d\"} is 0.5"
        );
    }
}
