//! Softmax cross-entropy: the loss of a batch and its gradient with respect to the logits.

use crate::Error;
use crate::scalar::Scalar;

/// The sum of −log softmax(logits)[label] over the batch. Writes the gradient of that sum times `factor` (1 for a sum,
/// 1/N for a mean) to `dlogits`.
pub(crate) fn loss<T: Scalar>(
    classes: usize,
    logits: &[T],
    labels: &[u32],
    factor: T,
    dlogits: &mut [T],
) -> Result<f64, Error> {
    let mut total = 0.0;
    let rows = logits.chunks_exact(classes).zip(dlogits.chunks_exact_mut(classes));
    for (example, ((logits, dlogits), &label)) in rows.zip(labels).enumerate() {
        let label = label as usize;
        if label >= classes {
            return Err(Error::LabelOutOfRange { example, found: label as i64, classes });
        }
        // Shifted by the largest logit, so that no exponential overflows.
        let top = logits
            .iter()
            .copied()
            .fold(T::of(f64::NEG_INFINITY), |top, logit| if logit > top { logit } else { top });
        let sum: T = logits.iter().map(|&logit| (logit - top).exp()).sum();
        total += (sum.ln() - (logits[label] - top)).wide();
        for (class, (d, &logit)) in dlogits.iter_mut().zip(logits).enumerate() {
            let probability = (logit - top).exp() / sum;
            *d = factor * (if class == label { probability - T::one() } else { probability });
        }
    }
    Ok(total)
}
