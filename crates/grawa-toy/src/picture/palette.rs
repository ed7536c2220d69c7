//! Colours: one look for each method, the same in every picture, and scales for heights and valleys.
//!
//! Method colours are those of Okabe and Ito, extended from Paul Tol's sets: people who see colours
//! differently can distinguish them, and every method also has its own marker shape.

use grawa_core::Name;

use super::marker::Marker;

/// A colour: red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rgb(pub u8, pub u8, pub u8);

/// How a method is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look<'a> {
    /// The name as the paper spells it.
    pub label: &'a str,
    /// The method's colour.
    pub colour: Rgb,
    /// The method's marker.
    pub marker: Marker,
}

/// The ground.
pub const WHITE: Rgb = Rgb(255, 255, 255);
/// Text and axes.
pub const INK: Rgb = Rgb(34, 34, 34);
/// Remarks and leader lines.
pub const FAINT: Rgb = Rgb(105, 105, 105);
/// Hair lines.
pub const HAIR: Rgb = Rgb(190, 190, 190);
/// Workers that did not converge to one valley.
pub const SPLIT: Rgb = Rgb(158, 158, 158);
/// Workers that agree, away from the bottom of a valley.
pub const UNSETTLED: Rgb = Rgb(236, 236, 236);
/// Runs that were lost.
pub const LOST: Rgb = Rgb(0, 0, 0);

const METHODS: &[(Name, u32, Marker)] = &[
    (Name::Easgd, 0x0072B2, Marker::SQUARE),
    (Name::Lsgd, 0xE69F00, Marker::UP),
    (Name::Grawa, 0x44CCCC, Marker::DIAMOND),
    (Name::Mgrawa, 0x009E73, Marker::DOWN),
    (Name::Lgrawa, 0xD55E00, Marker::CIRCLE),
    (Name::LocalMgrawa, 0x332288, Marker::PENTAGON),
    (Name::LocalLgrawa, 0xCC79A7, Marker::STAR),
    (Name::Mean, 0x1A1A1A, Marker::PLUS),
    (Name::Diloco, 0xEE00EE, Marker::SPARK),
    (Name::Slowmo, 0x00CC00, Marker::TRIPOD),
    (Name::Dppf, 0x0000EE, Marker::SNOW),
    (Name::Qsr, 0xEE0044, Marker::BAR),
    (Name::DpSgd, 0x999933, Marker::CROSS),
    (Name::DpSam, 0x882255, Marker::HEXAGON),
    (Name::Sgd, 0x777777, Marker::LEFT),
];

const fn hex(rgb: u32) -> Rgb {
    Rgb((rgb >> 16) as u8, (rgb >> 8) as u8, rgb as u8)
}

/// The look of a method; an unknown one has its own name, in brown.
pub fn look(method: &str) -> Look<'_> {
    let known = METHODS.iter().find(|(name, ..)| name.as_str() == method);
    known.map_or(
        Look { label: method, colour: hex(0x7A4A1E), marker: Marker::RIGHT },
        |&(name, rgb, marker)| Look { label: name.title(), colour: hex(rgb), marker },
    )
}

/// Marker and colour of lines, by the names of their methods. The first line of a method has the method's look, whatever the others are;
/// further ones have lighter colours, and markers of methods that are not shown. Names of no method have the colours of a series.
pub fn looks(methods: &[&str]) -> Vec<(Marker, Rgb)> {
    let is_shown = |name: &Name| methods.contains(&name.as_str());
    let free: Vec<Marker> = METHODS.iter().filter(|(name, ..)| !is_shown(name)).map(|it| it.2).collect();
    let (mut taken, mut found, mut others) = (0, Vec::new(), Vec::<&str>::new());
    for (index, method) in methods.iter().enumerate() {
        let is_other = rank(method) == METHODS.len();
        if is_other && !others.contains(method) {
            others.push(method);
        }
        let colour = match others.iter().position(|other| other == method) {
            Some(number @ 1..) => series(number - 1),
            _ => look(method).colour,
        };
        let before = methods[..index].iter().filter(|it| *it == method).count();
        let all = methods.iter().filter(|it| *it == method).count();
        let marker = match before == 0 && !(is_other && others.len() > 1) || free.is_empty() {
            true => look(method).marker,
            false => {
                taken += 1;
                free[(taken - 1) % free.len()]
            }
        };
        let lighter = before as f64 * (0.66 / (all.max(2) - 1) as f64).min(0.33);
        found.push((marker, mix(colour, WHITE, lighter)));
    }
    found
}

/// The position of a method in lists and legends; unknown ones come last.
pub fn rank(method: &str) -> usize {
    METHODS.iter().position(|(name, ..)| name.as_str() == method).unwrap_or(METHODS.len())
}

/// The colour of an item of a series, such as a worker.
pub fn series(index: usize) -> Rgb {
    hex(SERIES[index % SERIES.len()])
}

/// The number of different series colours.
pub const SERIES_COLOURS: usize = SERIES.len();

const SERIES: [u32; 7] = [0x0072B2, 0xD55E00, 0x009E73, 0xAA3377, 0xE6B400, 0x6A5ACD, 0x8A8A8A];

/// The marker of an item of a series. The pair of colour and marker is unique for the first 35.
pub fn series_marker(index: usize) -> Marker {
    [Marker::CIRCLE, Marker::SQUARE, Marker::UP, Marker::DIAMOND, Marker::DOWN][index % 5]
}

/// A colour in CSS.
pub fn css(colour: Rgb) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

/// The colour of a height of f, from −2 (blue) over 0 (cream) to 2 (brown).
pub fn height(f: f64) -> Rgb {
    const SCALE: [u32; 9] =
        [0x1D3B66, 0x2F6690, 0x5A9DB5, 0xA3CDC8, 0xF3EED9, 0xF0CF94, 0xE2A063, 0xC56A45, 0x8A392E];
    if f.is_nan() {
        return SPLIT;
    }
    let last = SCALE.len() - 1;
    let along = ((f + 2.0) / 4.0).clamp(0.0, 1.0) * last as f64;
    let below = (along as usize).min(last - 1);
    mix(hex(SCALE[below]), hex(SCALE[below + 1]), along - below as f64)
}

/// The colour of a valley: dark red for the sharpest (0), blue for the flattest (5), and one more either way.
pub fn valley(index: i32) -> Rgb {
    const SCALE: [u32; 8] = [0x5E0A22, 0xA50026, 0xDD3D2D, 0xF67E4B, 0xFEDA8B, 0xA6D3E6, 0x4A86C0, 0x2B2F77];
    hex(SCALE[(index.clamp(-1, 6) + 1) as usize])
}

/// `share` of the way from one colour to another.
pub fn mix(from: Rgb, to: Rgb, share: f64) -> Rgb {
    let part =
        |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share.clamp(0.0, 1.0)).round() as u8;
    Rgb(part(from.0, to.0), part(from.1, to.1), part(from.2, to.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distance(a: Rgb, b: Rgb) -> i32 {
        let part = |a: u8, b: u8| (i32::from(a) - i32::from(b)).pow(2);
        part(a.0, b.0) + part(a.1, b.1) + part(a.2, b.2)
    }

    /// The distance of two colours in CIE L*a*b*, which is made to follow the eye: 2 is just to be seen, and blue and sky blue are 26.
    fn seen(a: Rgb, b: Rgb) -> f64 {
        let (a, b) = (lab(a), lab(b));
        a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
    }

    fn lab(Rgb(r, g, b): Rgb) -> [f64; 3] {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { libm::pow((part + 0.055) / 1.055, 2.4) }
        };
        let [r, g, b] = [r, g, b].map(linear);
        let x = (0.412_456_4 * r + 0.357_576_1 * g + 0.180_437_5 * b) / 0.950_47;
        let y = 0.212_672_9 * r + 0.715_152_2 * g + 0.072_175 * b;
        let z = (0.019_333_9 * r + 0.119_192 * g + 0.950_304_1 * b) / 1.088_83;
        let root =
            |t: f64| if t > 216.0 / 24_389.0 { libm::cbrt(t) } else { (24_389.0 / 27.0 * t + 16.0) / 116.0 };
        let [x, y, z] = [x, y, z].map(root);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    #[test]
    fn methods_differ_in_colour_and_in_shape() {
        assert!(Name::ALL.iter().all(|name| METHODS.iter().any(|(known, ..)| known == name)));
        let mut looks: Vec<_> = METHODS.iter().map(|(name, ..)| look(name.as_str())).collect();
        looks.push(look("no such method"));
        for (index, a) in looks.iter().enumerate() {
            for b in &looks[..index] {
                let seen = seen(a.colour, b.colour);
                assert!(seen > 30.0, "{} and {} look alike: {seen}", a.label, b.label);
                assert_ne!(a.marker, b.marker);
            }
        }
        assert_eq!((look("local-mgrawa").label, look("other").label), ("Local-MGRAWA", "other"));
        assert!(rank("easgd") < rank("mean") && rank("mean") < rank("other"));
    }

    /// Of any two methods, each with several settings, alone or among all the others.
    #[test]
    fn lines_of_one_picture_differ_and_methods_keep_their_looks() {
        let all = Name::ALL.map(Name::as_str);
        let pairs = all.iter().flat_map(|a| all.iter().map(move |b| vec![*a, *b, *a, *a, *b]));
        let others = ["loss", "mean", "error", "loss", "share", "mean"].to_vec();
        for methods in pairs.chain([all.to_vec(), others]) {
            let found = looks(&methods);
            for (index, a) in found.iter().enumerate() {
                let is_first = !methods[..index].contains(&methods[index]);
                if is_first && rank(methods[index]) < METHODS.len() {
                    assert_eq!(*a, (look(methods[index]).marker, look(methods[index]).colour));
                }
                for (other, b) in found[..index].iter().enumerate() {
                    assert!(a.0 != b.0 && a.1 != b.1, "{methods:?}: {index} and {other}");
                    let seen = seen(a.1, b.1);
                    assert!(methods[index] != methods[other] || seen > 4.0, "{methods:?}: {seen}");
                }
            }
        }
    }

    #[test]
    fn like_things_can_be_told_apart() {
        for b in 0..35 {
            for a in 0..b {
                assert!((series(a), series_marker(a)) != (series(b), series_marker(b)), "{a} and {b}");
                let seen = seen(series(a), series(b));
                assert!(b >= SERIES_COLOURS || seen > 30.0, "{a} and {b}: {seen}");
            }
        }
    }

    #[test]
    fn scales_are_monotone_at_their_ends_and_take_any_number() {
        assert_eq!((height(-9.0), height(9.0)), (height(-2.0), height(2.0)));
        assert_eq!(height(f64::NAN), SPLIT);
        assert_eq!((valley(-7), valley(90)), (valley(-1), valley(6)));
        let all: Vec<_> = (-1..=6).map(valley).chain([SPLIT, UNSETTLED, LOST]).collect();
        for (index, &a) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|&b| distance(a, b) > 50 * 50), "valley colour {index}");
        }
    }
}
