//! The numbered example.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

#[path = "../examples/06_session.rs"]
mod session;

/// The worker that came back continues with the model of the others, and all end with the same one. Its loss is far below ln 2, that of
/// a model which knows nothing.
#[test]
fn a_training_loop_of_ones_own_is_one_of_three_workers() {
    let trained = session::learn().unwrap();
    let [stayed, _, came_back] = &trained[..] else { panic!("{} workers", trained.len()) };
    assert!(stayed.joined_at == 0 && came_back.joined_at > 0, "{trained:?}");
    assert!(trained.iter().all(|worker| worker.parameters == stayed.parameters), "{trained:?}");
    assert!(stayed.test_loss < 0.2, "{trained:?}");
}
