//! Connects processes that stay the same.

use crate::Error;
use crate::evaluate::viewing;
use crate::membership::Membership;
use crate::process::Connections;
use crate::snapshot::Part;
use grawa_comm::{Error as CommError, Transport};
use grawa_core::{Method, Share};

/// Connects the ranks of every group, among whom `all` workers are divided evenly. The parts hold the centres. All ranks connect all groups in the same order.
pub fn connect(
    transport: &dyn Transport,
    method: &Method,
    all: u32,
    length: usize,
    parts: &[Part],
) -> Result<Connections, Error> {
    let ranks = transport.size();
    let each = all / ranks.max(1);
    let levels = method.levels(all);
    let centre = |level: usize, number: usize| {
        let mut kept = parts.iter().flat_map(|part| &part.centres);
        match (method.share, kept.find(|(at, group, _)| (*at, *group) == (level, number))) {
            (Share::Nothing, _) => Vec::new(),
            (Share::Parameters, Some((_, _, centre))) => centre.clone(),
            (Share::Gradients | Share::Parameters, _) => {
                vec![0.0; levels[level].0.centre.state_len(length)]
            }
        }
    };
    let mut inner = Vec::new();
    if let [(_, groups), _] = &levels[..] {
        for (number, group) in groups.iter().enumerate() {
            let among = group.start / each..(group.end - 1) / each + 1;
            let member = match among.len() {
                1 => None,
                _ => transport.group(among.clone(), centre(0, number))?,
            };
            if among.contains(&transport.rank()) {
                inner.push((number, member));
            }
        }
    }
    let member = transport.group(0..ranks, centre(levels.len() - 1, 0))?.ok_or(CommError::NotInGroup)?;
    let looks = viewing(method.evaluate).is_some();
    let view = transport.group(0..ranks, vec![0.0; if looks { length } else { 0 }])?;
    let processes = (0..ranks).map(|rank| (rank, (rank * each..(rank + 1) * each).collect())).collect();
    let membership = Membership::Fixed(member);
    Ok(Connections { membership, processes, view, inner })
}
