//! `grawa methods`: the table of methods, and every knob of one.

use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use grawa_core::{Method, Name, Preset, Pull, Share};
use grawa_lab::Table;

/// The methods and their knobs.
///
/// Without a name: the table of all methods. With one, such as `lgrawa` or `easgd:pull=0.3,period=8`: every knob of
/// that method as TOML, which can be pasted into a recipe.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa methods\n  grawa methods lgrawa\n  grawa methods lsgd:period=16,inner.group=4 --preset reference"
)]
pub(crate) struct Arguments {
    /// The method, with any of its knobs
    method: Option<String>,
    /// Whose defaults: the paper's pseudo-code (paper) or the authors' published code (reference)
    #[arg(long, default_value = "paper", value_parser = ["paper", "reference"])]
    preset: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let preset = if arguments.preset == "reference" { Preset::Reference } else { Preset::Paper };
    match &arguments.method {
        None => {
            let mut table = Table::new(["method", "period τ", "pull λ", "prox μ", "what it does"]);
            for name in Name::ALL {
                table.push(row(&Method::named(name, preset)));
            }
            print(&table.text());
            print(
                "`grawa methods NAME` shows every knob of one. A knob is set as in lgrawa:period=16,pull=0.7",
            );
        }
        Some(text) => {
            let text = match text.split_once(':') {
                _ if preset == Preset::Paper || text.contains("preset=") => text.clone(),
                None => format!("{text}:preset=reference"),
                Some((name, knobs)) => format!("{name}:preset=reference,{knobs}"),
            };
            let method: Method = text.parse()?;
            print(&format!("# {}: {}", method.name.title(), method.name.summary()));
            print(&format!("# on the command line: {method}"));
            print(method.to_toml().trim_end());
        }
    }
    Ok(())
}

fn row(method: &Method) -> [String; 5] {
    let pull = match method.pull {
        Pull::Fixed(pull) => pull.to_string(),
        Pull::RateOverWorkers => "ρ/M".into(),
    };
    let none = || "–".to_owned();
    let [every, pull, prox] = match method.share {
        Share::Parameters => [method.period.to_string(), pull, method.prox.to_string()],
        Share::Gradients => ["step".into(), none(), none()],
        Share::Nothing => [none(), none(), none()],
    };
    [method.name.to_string(), every, pull, prox, method.name.summary().into()]
}
