//! Curves as SVG.

use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::Plot;

const SIZE: (u32, u32) = (720, 420);

/// plotters' charts have a type for each kind of axis, and no trait over them.
macro_rules! draw_curves {
    ($chart:expr, $plot:expr) => {{
        let (mut chart, plot): (_, &Plot) = ($chart, $plot);
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(&plot.x).y_desc(&plot.y).draw()?;
        for (index, (name, points)) in plot.curves.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
            chart
                .draw_series(line)?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
        }
        let mut legend = chart.configure_series_labels();
        legend
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .position(SeriesLabelPosition::UpperLeft)
            .draw()?;
    }};
}

/// Draws into a file. An empty plot draws nothing but its axes.
pub(super) fn draw(plot: &Plot, file: &Path) -> Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut builder = ChartBuilder::on(&area);
    builder
        .caption(&plot.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64);
    let [x, y] =
        [|point: &(f64, f64)| point.0, |point: &(f64, f64)| point.1].map(|of| range(plot, of));
    if plot.logarithmic {
        draw_curves!(
            builder.build_cartesian_2d(x.log_scale(), y.log_scale())?,
            plot
        );
    } else {
        draw_curves!(builder.build_cartesian_2d(x, y)?, plot);
    }
    Ok(area.present()?)
}

/// All points, with room above; from zero where the axes are linear.
fn range(plot: &Plot, of: fn(&(f64, f64)) -> f64) -> Range<f64> {
    let values = || plot.curves.iter().flat_map(|(_, points)| points).map(of);
    let most = values().fold(0.0, f64::max);
    if plot.logarithmic {
        let least = values().fold(most.max(1.0), f64::min).max(1e-9);
        least / 1.5..most.max(least) * 2.0
    } else {
        0.0..if most > 0.0 { most * 1.1 } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_title_its_axes_and_its_curves() {
        let file = std::env::temp_dir().join(format!("leadsman-plot-{}.svg", std::process::id()));
        for logarithmic in [false, true] {
            let points = vec![(1.0, 2.0), (1000.0, 4.0)];
            let plot = Plot {
                title: "The title".into(),
                x: "pods".into(),
                y: "µs".into(),
                logarithmic,
                curves: vec![("first".into(), points), ("second".into(), vec![])],
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
