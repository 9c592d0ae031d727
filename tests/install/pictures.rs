//! A picture of each dashboard: the queries of its panels, answered by the Prometheus of this run, at the panels' places.
//! Grafana draws more beautifully; this shows which data there is. Drawn where `LEADSMAN_PICTURES` names a folder.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;

/// Of a grid of 24 columns, as Grafana has it.
const COLUMN: u32 = 50;
const LINE: u32 = 26;
const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A name, and values by seconds since the first.
pub(crate) type Curve = (String, Vec<(f64, f64)>);

/// One panel of a dashboard with what its queries returned; a heading has no curves.
pub(crate) struct Panel {
    pub(crate) json: Value,
    pub(crate) curves: Vec<Curve>,
}

/// The legend of a curve with the curve's labels filled in.
pub(crate) fn legend(pattern: &str, labels: &Value) -> String {
    let labels = labels.as_object().into_iter().flatten();
    labels.fold(pattern.to_owned(), |legend, (name, value)| {
        legend.replace(
            &format!("{{{{{name}}}}}"),
            value.as_str().unwrap_or_default(),
        )
    })
}

/// Draws a dashboard into a file.
pub(crate) fn draw(panels: &[Panel], file: &Path) -> Result<()> {
    let places = panels.iter().map(|panel| place(&panel.json));
    let bottom = places.map(|[_, y, _, h]| y + h).max().unwrap_or_default();
    let size = (24 * COLUMN, bottom * LINE);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    for panel in panels {
        let [x, y, w, h] = place(&panel.json);
        let (_, rest) = area.split_horizontally(x * COLUMN);
        let (part, _) = rest.split_horizontally(w * COLUMN);
        let (_, rest) = part.split_vertically(y * LINE);
        let (part, _) = rest.split_vertically(h * LINE);
        let drawn = match panel.json["type"].as_str() {
            Some("row") => draw_heading(panel, &part),
            Some("stat") => draw_number(panel, &part),
            _ => draw_curves(panel, &part),
        };
        drawn.map_err(|error| anyhow!("{}: {error}", title(panel)))?;
    }
    Ok(area.present()?)
}

fn place(panel: &Value) -> [u32; 4] {
    ["x", "y", "w", "h"].map(|field| {
        let number = panel["gridPos"][field].as_u64();
        number
            .and_then(|number| number.try_into().ok())
            .unwrap_or_default()
    })
}

fn title(panel: &Panel) -> &str {
    panel.json["title"].as_str().unwrap_or_default()
}

fn draw_heading(panel: &Panel, area: &Area<'_>) -> Result<()> {
    let bold = (FONT, 16, FontStyle::Bold, &BLACK).into_text_style(area);
    Ok(area.draw_text(title(panel), &bold, (8, 6))?)
}

fn draw_number(panel: &Panel, area: &Area<'_>) -> Result<()> {
    let unit = unit(panel);
    let values = panel.curves.iter().filter_map(|(_, points)| points.last());
    let values: Vec<_> = values.map(|(_, value)| with_unit(*value, unit)).collect();
    area.draw_text(title(panel), &(FONT, 13).into_text_style(area), (8, 8))?;
    let large = (FONT, 30, &BLACK).into_text_style(area);
    Ok(area.draw_text(&values.join(" "), &large, (12, 40))?)
}

fn draw_curves(panel: &Panel, area: &Area<'_>) -> Result<()> {
    let points = || panel.curves.iter().flat_map(|(_, points)| points);
    let end = points().map(|(x, _)| *x).fold(1.0, f64::max);
    let top = points().map(|(_, y)| *y).fold(0.0, f64::max);
    let top = if top > 0.0 { top * 1.3 } else { 1.0 };
    let unit = unit(panel);
    let mut chart = ChartBuilder::on(area)
        .caption(title(panel), (FONT, 13))
        .margin(6)
        .x_label_area_size(20)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_labels(4)
        .y_labels(4)
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .y_label_formatter(&|y| with_unit(*y, unit))
        .draw()?;
    // Closed lists of labels make many curves that are always zero; they are drawn without a name.
    let is_zero = |(_, points): &&Curve| points.iter().all(|(_, y)| *y == 0.0);
    for (_, points) in panel.curves.iter().filter(is_zero) {
        chart.draw_series(LineSeries::new(points.iter().copied(), BLACK.mix(0.3)))?;
    }
    let named = panel.curves.iter().filter(|curve| !is_zero(curve));
    for (index, (name, points)) in named.enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                color.stroke_width(2),
            ))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 12, y)], color));
    }
    chart
        .configure_series_labels()
        .label_font((FONT, 10))
        .background_style(WHITE.mix(0.7))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    Ok(())
}

fn unit(panel: &Panel) -> &str {
    let unit = &panel.json["fieldConfig"]["defaults"]["unit"];
    unit.as_str().unwrap_or_default()
}

/// As Grafana writes a value of its unit, roughly.
fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "s" if value >= 86_400.0 => format!("{:.0} d", value / 86_400.0),
        "s" if value != 0.0 && value < 1.0 => format!("{:.1} ms", value * 1_000.0),
        "s" => format!("{value:.1} s"),
        "bytes" => format!("{:.1} MiB", value / f64::from(1 << 20)),
        "percentunit" => format!("{:.2} %", value * 100.0),
        "ops" => format!("{value:.1}/s"),
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}
