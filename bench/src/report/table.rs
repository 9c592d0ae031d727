//! A result as a table of plain text, which is Markdown too: it goes into the docs as it is.

use std::fmt::Write as _;

use super::{Figure, Report, Target};

/// The table, with a line above on what it is of and a line below on what was missed.
pub(super) fn text(report: &Report, earlier: Option<&Report>) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "## {}\n\n{}\n\nCommit {}, {}; {} cores of {}, {} MiB, Linux {}.{}\n\n",
        report.bench,
        report.how,
        machine.commit,
        report.taken,
        machine.cores,
        machine.processor,
        machine.memory_mib,
        machine.kernel,
        if report.scale < 1.0 {
            " Below full size: no result, only a look."
        } else {
            ""
        },
    );
    let mut head = vec!["what", "measured", "to reach", "", "floor", "× floor"];
    if earlier.is_some() {
        head.push("earlier");
    }
    head.push("how");
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(report.figures.iter().map(|figure| row(figure, earlier)));
    lay_out(&rows, &mut text);
    let missed: Vec<_> = report
        .figures
        .iter()
        .filter(|figure| figure.reached() == Some(false))
        .map(|figure| figure.name.as_str())
        .collect();
    if missed.is_empty() {
        text.push_str("\nEvery target is reached.\n\n");
    } else {
        let _ = writeln!(text, "\nMissed: {}.\n", missed.join("; "));
    }
    text
}

fn row(figure: &Figure, earlier: Option<&Report>) -> Vec<String> {
    let with_unit = |value: f64| format!("{} {}", number(value), figure.unit);
    let targets = figure.targets.iter().map(|target| match target {
        Target::AtMost(most) => format!("≤ {}", number(*most)),
        Target::Exactly(value) => number(*value),
        Target::TimesFloor(times) => format!("≤ {} × floor", number(*times)),
    });
    let verdict = match figure.reached() {
        Some(true) => "ok",
        Some(false) => "missed",
        None => "",
    };
    let ratio = figure.floor.filter(|floor| *floor > 0.0);
    let mut row = vec![
        figure.name.clone(),
        with_unit(figure.value),
        targets.collect::<Vec<_>>().join(", "),
        verdict.to_owned(),
        figure.floor.map(with_unit).unwrap_or_default(),
        ratio
            .map(|floor| format!("{:.2}", figure.value / floor))
            .unwrap_or_default(),
    ];
    if let Some(earlier) = earlier {
        let before = earlier.figures.iter().find(|it| it.name == figure.name);
        row.push(
            before
                .map(|before| change(before.value, figure.value))
                .unwrap_or_default(),
        );
    }
    row.push(figure.note.clone());
    row
}

/// The earlier value, and by what the present one differs.
fn change(before: f64, now: f64) -> String {
    if before == 0.0 {
        return number(before);
    }
    format!(
        "{} ({:+.0} %)",
        number(before),
        (now / before - 1.0) * 100.0
    )
}

/// Three significant digits, and whole numbers whole.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if (value - value.round()).abs() < 1e-9 || size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

fn lay_out(rows: &[Vec<String>], text: &mut String) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if index == 0 {
            let rules: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
            let _ = writeln!(text, "|-{}-|", rules.join("-|-"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_what_was_missed_and_what_changed() {
        let mut report = Report::new("agent", 1.0, "As it is.");
        report.add(
            Figure::new("CPU a probe", 130.0, "µs")
                .floor(100.0)
                .reach(Target::AtMost(150.0))
                .reach(Target::TimesFloor(1.25)),
        );
        report.add(Figure::new("calls", 1.0, "").reach(Target::Exactly(1.0)));
        let mut earlier = report.clone();
        earlier.figures[0].value = 260.0;
        let text = report.text(Some(&earlier));
        assert!(text.contains("130 µs"), "{text}");
        assert!(text.contains("≤ 150, ≤ 1.25 × floor | missed"), "{text}");
        assert!(text.contains("260 (-50 %)"), "{text}");
        assert!(text.contains("Missed: CPU a probe."), "{text}");
    }

    #[test]
    fn numbers_have_three_digits() {
        let table = [
            (0.0, "0"),
            (0.1234, "0.123"),
            (1.0, "1"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (1234.5, "1234"),
        ];
        for (value, text) in table {
            assert_eq!(number(value), text);
        }
    }
}
