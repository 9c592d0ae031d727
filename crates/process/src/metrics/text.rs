//! The text form: that of Prometheus before `OpenMetrics`, which every scraper reads, and `promtool check metrics` too.

use std::fmt::Write as _;

/// Media type of the text form.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `OpenMetrics`, which the library writes, in the older format. Samples are equal; in comments, a counter has the name of its
/// samples there, an info metric is a gauge, and there are no units (Prometheus, "Exposition formats").
pub(super) fn from_open_metrics(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = "";
    for line in open_metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap_or((described, "untyped"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            // Writing to a String does not fail.
            let _ = writeln!(text, "# HELP {name}{suffix} {help}");
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_infos_are_described_by_the_names_of_their_samples() {
        let open_metrics = "\
# HELP l_build Version.
# TYPE l_build info
l_build_info{version=\"1\"} 1
# HELP l_writes Writes by result.
# TYPE l_writes counter
l_writes_total{result=\"done\"} 2
# HELP l_lag_seconds Lag.
# TYPE l_lag_seconds histogram
# UNIT l_lag_seconds seconds
l_lag_seconds_sum 0.5
l_lag_seconds_count 1
l_lag_seconds_bucket{le=\"+Inf\"} 1
# HELP l_none Nothing yet.
# TYPE l_none counter
# EOF
";
        let expected = "\
# HELP l_build_info Version.
# TYPE l_build_info gauge
l_build_info{version=\"1\"} 1
# HELP l_writes_total Writes by result.
# TYPE l_writes_total counter
l_writes_total{result=\"done\"} 2
# HELP l_lag_seconds Lag.
# TYPE l_lag_seconds histogram
l_lag_seconds_sum 0.5
l_lag_seconds_count 1
l_lag_seconds_bucket{le=\"+Inf\"} 1
# HELP l_none_total Nothing yet.
# TYPE l_none_total counter
";
        assert_eq!(from_open_metrics(open_metrics), expected);
    }
}
