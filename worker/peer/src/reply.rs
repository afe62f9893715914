//! Replies of the synchroniser to tasks.

use longhaul_member::{Answer, Reply};
use tokio::sync::oneshot;

/// Returns a synchroniser's reply handle and a task's receiver.
#[must_use]
pub fn reply<T: std::fmt::Debug + Send + 'static>() -> (Reply<T>, oneshot::Receiver<T>) {
    let (sender, receiver) = oneshot::channel();
    (Box::new(ToTask(sender)), receiver)
}

#[derive(Debug)]
struct ToTask<T>(oneshot::Sender<T>);

impl<T: std::fmt::Debug + Send> Answer<T> for ToTask<T> {
    fn give(self: Box<Self>, answer: T) {
        // The requester may have left.
        let _ = self.0.send(answer);
    }

    fn is_wanted(&self) -> bool {
        !self.0.is_closed()
    }
}
