//! A result as a page of plain text, which is Markdown too: it goes into the docs as it is.

use super::{Figure, Report, Target};

/// Columns of a line of prose. Tables are as wide as what is in them; whatever is long stands in a note below.
const WIDTH: usize = 120;

impl Report {
    /// A page for people, beside an earlier result: what was done, the table, its notes, and what was missed.
    pub(crate) fn text(&self, earlier: Option<&Self>) -> String {
        let machine = &self.machine;
        let mut head = vec![
            "what", "measured", "to reach", "", "floor", "× floor", "note",
        ];
        if earlier.is_some() {
            head.insert(6, "earlier");
        }
        let mut notes = Notes::default();
        let mut rows = vec![head.into_iter().map(str::to_owned).collect()];
        let figures = self.figures.iter();
        rows.extend(figures.map(|figure| row(figure, earlier, &mut notes)));
        let taken = format!(
            "Commit {}, {}; {} cores of {}, {} MiB, Linux {}.{}",
            machine.commit,
            self.taken,
            machine.cores,
            machine.processor,
            machine.memory_mib,
            machine.kernel,
            size(self.scale),
        );
        let how = self.how.lines();
        let how = how.map(|item| wrap(item.trim_start_matches("- "), "- "));
        format!(
            "## {}\n\n{}\n{}\n{}{}{}",
            self.bench,
            how.collect::<String>(),
            wrap(&taken, ""),
            lay_out(&rows),
            notes.text(),
            self.missed(),
        )
    }

    /// Which figures are further from their targets than they may be.
    fn missed(&self) -> String {
        let missed = self.figures.iter();
        let missed = missed.filter(|figure| figure.reached() == Some(false));
        let lines: Vec<_> = missed
            .map(|figure| format!("- {}\n", figure.name))
            .collect();
        if lines.is_empty() {
            return "\nEvery target is reached.\n\n".to_owned();
        }
        format!("\nMissed:\n\n{}\n", lines.concat())
    }
}

/// What a run says about itself that was smaller, or shorter, than it should be.
fn size(scale: f64) -> String {
    if scale >= 1.0 {
        return String::new();
    }
    format!(
        " With `--scale {:.0}`: all sizes are {0:.0} % of those above, and a target that depends on the size says nothing.",
        scale * 100.0
    )
}

/// The notes of a table, in the order of their numbers. Figures that have the same one share its number.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    /// The number of a note; nothing for none.
    fn number(&mut self, note: &str) -> String {
        if note.is_empty() {
            return String::new();
        }
        let known = self.0.iter().position(|known| known == note);
        let index = known.unwrap_or_else(|| {
            self.0.push(note.to_owned());
            self.0.len() - 1
        });
        format!("{}", index + 1)
    }

    fn text(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let notes = self.0.iter().enumerate();
        let notes = notes.map(|(index, note)| wrap(note, &format!("{}. ", index + 1)));
        format!("\nNotes:\n\n{}", notes.collect::<String>())
    }
}

/// A paragraph in lines of [`WIDTH`], the first of which begins with these characters and the others with as many spaces.
fn wrap(text: &str, begin: &str) -> String {
    let mut words = text.split(' ');
    let mut lines = vec![format!("{begin}{}", words.next().unwrap_or_default())];
    for word in words {
        let last = lines.len() - 1;
        if lines[last].chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(" ".repeat(begin.len()) + word);
        } else {
            lines[last].extend([" ", word]);
        }
    }
    lines.join("\n") + "\n"
}

fn row(figure: &Figure, earlier: Option<&Report>, notes: &mut Notes) -> Vec<String> {
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
    row.push(notes.number(&figure.note));
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
        let row = "≤ 150, ≤ 1.25 × floor | missed | 100 µs | 1.30 ";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("260 (-50 %)"), "{text}");
        assert!(text.contains("Missed:\n\n- tcp: CPU a probe\n"), "{text}");
        assert!(!text.contains("--scale"), "{text}");
    }

    #[test]
    fn what_is_long_stands_once_in_a_note_below_the_table() {
        let mut report = Report::new("restart", 0.25, "word ".repeat(60).trim_end());
        let long = "3 × list pods, ".repeat(20);
        for section in ["first", "later"] {
            let add = report.section(section);
            add.add(&figures::READY, 1.0).note(long.trim_end());
        }
        report.add(&figures::EVENTS, 1_u64);
        let text = report.text(None);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(WIDTH), "{text}");
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
        let notes = lines[2..].iter().map(|line| line.split('|').nth(7));
        let notes: Vec<_> = notes.flatten().map(str::trim).collect();
        assert_eq!(notes, ["1", "1", ""], "{text}");
        assert_eq!(text.matches("\n1. 3 × list pods,").count(), 1, "{text}");
        assert!(!text.contains("\n2. "), "{text}");
        assert!(text.contains("With `--scale 25`"), "{text}");
    }

    #[test]
    fn numbers_have_three_digits() {
        let numbers = [0.0, 0.1234, 1.0, 1.234, 12.34, 1234.5].map(number);
        assert_eq!(numbers, ["0", "0.123", "1", "1.23", "12.3", "1234"]);
    }
}
