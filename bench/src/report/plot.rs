//! Curves as SVG.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::prelude::*;

use super::Plot;

const SIZE: (u32, u32) = (720, 420);

/// plotters' charts have a type for each kind of axis, and no trait over them.
macro_rules! curves {
    ($chart:expr, $plot:expr) => {{
        let mut chart = $chart;
        let plot: &Plot = $plot;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(&plot.x)
            .y_desc(&plot.y)
            .draw()
            .map_err(failed)?;
        for (index, (name, points)) in plot.curves.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
            chart
                .draw_series(line)
                .map_err(failed)?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
        }
        let mut legend = chart.configure_series_labels();
        legend
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .position(SeriesLabelPosition::UpperLeft)
            .draw()
            .map_err(failed)?;
    }};
}

/// Draws into a file. An empty plot draws nothing but its axes.
pub(super) fn draw(plot: &Plot, file: &Path) -> Result<()> {
    drawn(plot, file).with_context(|| format!("drawing {}", file.display()))
}

fn drawn(plot: &Plot, file: &Path) -> Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut builder = ChartBuilder::on(&area);
    builder
        .caption(&plot.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64);
    let (x, y) = ranges(plot);
    if plot.logarithmic {
        let chart = builder.build_cartesian_2d(x.log_scale(), y.log_scale());
        curves!(chart.map_err(failed)?, plot);
    } else {
        let chart = builder.build_cartesian_2d(x, y);
        curves!(chart.map_err(failed)?, plot);
    }
    area.present().map_err(failed)
}

/// All points, with room above; from zero where the axes are linear.
fn ranges(plot: &Plot) -> (std::ops::Range<f64>, std::ops::Range<f64>) {
    let points = || plot.curves.iter().flat_map(|(_, points)| points);
    let range = |of: fn(&(f64, f64)) -> f64| {
        let most = points().map(of).fold(0.0, f64::max);
        if plot.logarithmic {
            let least = points().map(of).fold(most.max(1.0), f64::min).max(1e-9);
            least / 1.5..most.max(least) * 2.0
        } else {
            0.0..if most > 0.0 { most * 1.1 } else { 1.0 }
        }
    };
    (range(|point| point.0), range(|point| point.1))
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_title_its_axes_and_its_curves() {
        let file = std::env::temp_dir().join(format!("leadsman-plot-{}.svg", std::process::id()));
        for logarithmic in [false, true] {
            let plot = Plot {
                title: "The title".into(),
                x: "pods".into(),
                y: "µs".into(),
                logarithmic,
                curves: vec![
                    ("first".into(), vec![(1.0, 2.0), (1000.0, 4.0)]),
                    ("second".into(), vec![]),
                ],
                ..Plot::default()
            };
            draw(&plot, &file).unwrap();
            let text = std::fs::read_to_string(&file).unwrap();
            for word in ["The title", "pods", "µs", "first", "<polyline"] {
                assert!(text.contains(word), "{word} is missing");
            }
        }
        std::fs::remove_file(&file).unwrap();
    }
}
