//! A result as a table of plain text, which is Markdown too: it goes into the docs as it is.

use super::{Figure, Report, Target};

impl Report {
    /// A table for people, beside an earlier result; with a line above on what it is of and a line below on what was missed.
    pub(crate) fn text(&self, earlier: Option<&Self>) -> String {
        let machine = &self.machine;
        let look = match self.scale {
            ..1.0 => " Below full size: no result, only a look.",
            _ => "",
        };
        let mut head = vec![
            "what", "measured", "to reach", "", "floor", "× floor", "how",
        ];
        if earlier.is_some() {
            head.insert(6, "earlier");
        }
        let mut rows = vec![head.into_iter().map(str::to_owned).collect()];
        rows.extend(self.figures.iter().map(|figure| row(figure, earlier)));
        let missed = self
            .figures
            .iter()
            .filter(|figure| figure.reached() == Some(false));
        let missed: Vec<_> = missed.map(|figure| figure.name.as_str()).collect();
        let verdict = match missed.as_slice() {
            [] => "Every target is reached".to_owned(),
            missed => format!("Missed: {}", missed.join("; ")),
        };
        format!(
            "## {}\n\n{}\n\nCommit {}, {}; {} cores of {}, {} MiB, Linux {}.{look}\n\n{}\n{verdict}.\n\n",
            self.bench,
            self.how,
            machine.commit,
            self.taken,
            machine.cores,
            machine.processor,
            machine.memory_mib,
            machine.kernel,
            lay_out(&rows),
        )
    }
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
    let ratio = ratio.map(|floor| format!("{:.2}", figure.value / floor));
    let mut row = vec![
        figure.name.clone(),
        with_unit(figure.value),
        targets.collect::<Vec<_>>().join(", "),
        verdict.to_owned(),
        figure.floor.map(with_unit).unwrap_or_default(),
        ratio.unwrap_or_default(),
    ];
    if let Some(earlier) = earlier {
        let before = earlier.figures.iter().find(|it| it.name == figure.name);
        let change = before.map(|before| change(before.value, figure.value));
        row.push(change.unwrap_or_default());
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
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if (size - size.round()).abs() < 1e-9 || size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

fn lay_out(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..rows[0].len()).filter_map(width).collect();
    let line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{cell:<width$}"));
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let rules: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let rules = format!("|-{}-|\n", rules.join("-|-"));
    let mut lines: Vec<_> = rows.iter().map(|row| line(row)).collect();
    lines.insert(1, rules);
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures;

    #[test]
    fn a_table_says_what_was_missed_and_what_changed() {
        let mut report = Report::new("agent", 1.0, "As it is.");
        let add = report.section("tcp");
        add.compare(&figures::CPU_A_PROBE, 130e-6, 100e-6).targets =
            vec![Target::AtMost(150.0), Target::TimesFloor(1.25)];
        add.add(&figures::EVENTS, 1_u64);
        let mut earlier = report.clone();
        earlier.figures[0].value = 260.0;
        let text = report.text(Some(&earlier));
        assert!(text.contains("130 µs"), "{text}");
        assert!(text.contains("≤ 150, ≤ 1.25 × floor | missed"), "{text}");
        assert!(text.contains("260 (-50 %)"), "{text}");
        assert!(text.contains("Missed: tcp: CPU a probe."), "{text}");
    }

    #[test]
    fn numbers_have_three_digits() {
        let numbers = [0.0, 0.1234, 1.0, 1.234, 12.34, 1234.5].map(number);
        assert_eq!(numbers, ["0", "0.123", "1", "1.23", "12.3", "1234"]);
    }
}
