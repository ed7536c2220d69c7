//! Slices of the landscape as pictures and tables.

use crate::picture::Picture;
use crate::picture::chart::{self, Chart};
use crate::picture::map::Map;
use crate::{Error, Folder, Table};
use grawa_flat::{Line, Plane};

/// Loss and error along a line.
pub fn draw_line(line: &Line, title: &str) -> Result<Picture, Error> {
    let of = |name: &str, figure: fn(&grawa_flat::Standing) -> f64| chart::Line {
        name: name.into(),
        points: line.places.iter().copied().zip(line.standings.iter().map(figure)).collect(),
    };
    let chart = Chart {
        title: title.into(),
        axes: ["0: first checkpoint, 1: second", "loss, and share of wrong examples"].map(Into::into),
        lines: vec![of("loss", |standing| standing.loss), of("error", |standing| standing.error)],
        marks: vec![0.0, 1.0],
        ..Chart::default()
    };
    Ok(chart.draw()?)
}

/// The loss over a plane, with named places on it, the middle first.
pub fn draw_plane(
    plane: &Plane,
    title: &str,
    axes: [&str; 2],
    marks: Vec<(String, (f64, f64))>,
) -> Result<Picture, Error> {
    let map = Map {
        title: title.into(),
        axes: [axes[0], axes[1], "loss"].map(Into::into),
        places: plane.places.clone(),
        heights: plane.standings.iter().map(|standing| standing.loss).collect(),
        marks,
    };
    Ok(map.draw()?)
}

/// Puts a line and its picture into a folder.
pub fn put_line(line: &Line, title: &str, folder: &mut Folder) -> Result<(), Error> {
    let mut table = Table::new(["place", "loss", "error"]);
    for (place, standing) in line.places.iter().zip(&line.standings) {
        table.push([place, &standing.loss, &standing.error].map(|x| format!("{x}")));
    }
    folder.put("line.csv", table.csv());
    let picture = draw_line(line, title)?;
    folder.put("line.svg", picture.svg());
    folder.put("line.png", picture.png()?);
    Ok(())
}

/// Puts a plane and its picture into a folder.
pub fn put_plane(
    plane: &Plane,
    title: &str,
    axes: [&str; 2],
    marks: Vec<(String, (f64, f64))>,
    folder: &mut Folder,
) -> Result<(), Error> {
    let mut table = Table::new(["first", "second", "loss", "error"]);
    let mut standings = plane.standings.iter();
    for up in &plane.places[1] {
        for (along, standing) in plane.places[0].iter().zip(&mut standings) {
            table.push([along, up, &standing.loss, &standing.error].map(|x| format!("{x}")));
        }
    }
    folder.put("plane.csv", table.csv());
    let mut places = Table::new(["name", "first", "second"]);
    for (name, (along, up)) in &marks {
        places.push([name.clone(), along.to_string(), up.to_string()]);
    }
    folder.put("places.csv", places.csv());
    let picture = draw_plane(plane, title, axes, marks)?;
    folder.put("plane.svg", picture.svg());
    folder.put("plane.png", picture.png()?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_flat::Standing;

    #[test]
    fn slices_leave_tables_and_pictures() {
        let at = |loss: f64| Standing { loss, error: loss / 10.0 };
        let line = Line { places: vec![0.0, 0.5, 1.0], standings: [0.1, 2.0, 0.2].map(at).into() };
        let places = std::env::temp_dir().join(format!("grawa-slices-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&places);
        let mut folder = Folder::claim(&places, "a = 1").unwrap();
        put_line(&line, "line", &mut folder).unwrap();
        let plane = Plane {
            places: [vec![-1.0, 0.0, 1.0], vec![-1.0, 1.0]],
            standings: [3.0, 1.0, 3.0, 4.0, 2.0, 4.0].map(at).into(),
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
