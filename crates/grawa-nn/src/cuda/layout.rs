//! The order of weights: the GPU stores the kernels of a convolution as out × taps × in, the host as out × in × taps.

use super::compile::Span;
use rayon::prelude::*;

/// Copies a vector from the order of the host to that of the GPU, or back. All cores take part, as below.
pub(super) fn relayout(spans: &[Span], from: &[f32], to: &mut [f32], to_device: bool) {
    let mut done = 0;
    for span in spans {
        let (range, kernel) =
            (span.start as usize..(span.start + span.length) as usize, span.taps * span.channels);
        let (from, to) = (&from[range.clone()], &mut to[range.clone()]);
        done = range.end;
        match span.taps {
            ..=1 => copy(from, to),
            taps => from
                .par_chunks_exact(kernel as usize)
                .zip(to.par_chunks_exact_mut(kernel as usize))
                .with_min_len(8)
                .for_each(|(from, to)| relayout_kernel(taps as usize, from, to, to_device)),
        }
    }
    copy(&from[done..], &mut to[done..]);
}

/// The same in place. Checkpoints convert all vectors of all workers.
pub(super) fn relayout_in_place(spans: &[Span], vector: &mut [f32], to_device: bool) {
    for span in spans.iter().filter(|span| span.taps > 1) {
        let (range, kernel) =
            (span.start as usize..(span.start + span.length) as usize, span.taps * span.channels);
        let kernels = vector[range].par_chunks_exact_mut(kernel as usize).with_min_len(8);
        kernels.for_each_init(Vec::new, |from, to| {
            from.clear();
            from.extend_from_slice(to);
            relayout_kernel(span.taps as usize, from, to, to_device);
        });
    }
}

fn relayout_kernel(taps: usize, from: &[f32], to: &mut [f32], to_device: bool) {
    let channels = to.len() / taps;
    for tap in 0..taps {
        for channel in 0..channels {
            let (host, device) = (channel * taps + tap, tap * channels + channel);
            match to_device {
                true => to[device] = from[host],
                false => to[host] = from[device],
            }
        }
    }
}

fn copy(from: &[f32], to: &mut [f32]) {
    let parts = from.par_chunks(1 << 16).zip(to.par_chunks_mut(1 << 16));
    parts.for_each(|(from, to)| to.copy_from_slice(from));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_and_channels_change_places_and_back() {
        // A bias of one number, two kernels of two taps and three channels, and one number that is in no span.
        let spans = [
            Span { length: 1, ..Span::default() },
            Span { start: 1, length: 12, taps: 2, channels: 3, ..Span::default() },
        ];
        let host: Vec<f32> = (0..14).map(|x| x as f32).collect();
        let (mut device, mut back) = ([0.0; 14], [0.0; 14]);
        relayout(&spans, &host, &mut device, true);
        assert_eq!(device, [0., 1., 3., 5., 2., 4., 6., 7., 9., 11., 8., 10., 12., 13.]);
        relayout(&spans, &device, &mut back, false);
        assert_eq!(back[..], host);
        let mut again = host;
        relayout_in_place(&spans, &mut again, true);
        assert_eq!(again, device);
    }
}
