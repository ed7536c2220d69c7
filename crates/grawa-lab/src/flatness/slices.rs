//! Slices of the landscape as pictures and tables.

use crate::picture::chart::{self, Chart};
use crate::picture::map::Map;
use crate::{Error, Folder, Table};
use grawa_flat::{Line, LossAndError, Plane};

/// Puts loss and error along a line, and their picture, into a folder.
pub fn put_line(line: &Line, title: &str, ends: [&str; 2], folder: &mut Folder) -> Result<(), Error> {
    let mut table = Table::new(["place", "loss", "error"]);
    for (place, value) in line.places.iter().zip(&line.values) {
        table.push([place, &value.loss, &value.error].map(f64::to_string));
    }
    folder.put("line.csv", table.csv());
    let of = |name: &str, figure: fn(&LossAndError) -> f64| chart::Line {
        name: name.into(),
        points: line.places.iter().copied().zip(line.values.iter().map(figure)).collect(),
    };
    let axes = [&format!("0: {}, 1: {}", ends[0], ends[1]), "loss, and share of wrong examples"];
    let lines = vec![of("loss", |value| value.loss), of("error", |value| value.error)];
    let chart = Chart { marks: vec![0.0, 1.0], ..Chart::new(title, axes, [false; 2], lines) };
    Ok(folder.put_pictures(&[chart.figure("line")?])?)
}

/// Puts the loss over a plane, and its picture, into a folder; with named points on it, the middle first.
pub fn put_plane(
    plane: &Plane,
    title: &str,
    axes: [&str; 2],
    marks: Vec<(String, (f64, f64))>,
    folder: &mut Folder,
) -> Result<(), Error> {
    let mut table = Table::new(["first", "second", "loss", "error"]);
    let mut values = plane.values.iter();
    for up in &plane.places[1] {
        for (along, value) in plane.places[0].iter().zip(&mut values) {
            table.push([along, up, &value.loss, &value.error].map(f64::to_string));
        }
    }
    folder.put("plane.csv", table.csv());
    let mut places = Table::new(["name", "first", "second"]);
    for (name, (along, up)) in &marks {
        places.push([name.clone(), along.to_string(), up.to_string()]);
    }
    folder.put("places.csv", places.csv());
    let map = Map {
        title: title.into(),
        axes: [axes[0], axes[1], "loss"].map(Into::into),
        places: plane.places.clone(),
        heights: plane.values.iter().map(|value| value.loss).collect(),
        marks,
    };
    Ok(folder.put_pictures(&[map.figure("plane")?])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_leave_tables_and_pictures() {
        let at = |loss: f64| LossAndError { loss, error: loss / 10.0 };
        let line = Line { places: vec![0.0, 0.5, 1.0], values: [0.1, 2.0, 0.2].map(at).into() };
        let places = std::env::temp_dir().join(format!("grawa-slices-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&places);
        let mut folder = Folder::claim(&places, "a = 1").unwrap();
        put_line(&line, "line", ["a", "b"], &mut folder).unwrap();
        let plane = Plane {
            places: [vec![-1.0, 0.0, 1.0], vec![-1.0, 1.0]],
            values: [3.0, 1.0, 3.0, 4.0, 2.0, 4.0].map(at).into(),
        };
        let marks = vec![("centre".to_owned(), (0.0, 0.0)), ("worker 0".to_owned(), (0.5, -0.5))];
        put_plane(&plane, "plane", ["a", "b"], marks, &mut folder).unwrap();
        let here = folder.finish().unwrap();
        let csv = std::fs::read_to_string(here.join("plane.csv")).unwrap();
        assert_eq!(csv.lines().nth(2), Some("0,-1,1,0.1"));
        assert_eq!(csv.lines().count(), 7);
        assert_eq!(std::fs::read_to_string(here.join("line.csv")).unwrap().lines().nth(2), Some("0.5,2,0.2"));
        assert!(here.join("plane.png").exists() && here.join("line.svg").exists());
        std::fs::remove_dir_all(&places).unwrap();
    }
}
