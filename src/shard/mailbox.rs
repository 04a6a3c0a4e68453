//! Bounded queue from the control thread to a shard, with a doorbell.

use crate::io::Doorbell;
use crossbeam_queue::ArrayQueue;
use std::sync::Arc;

/// The shard's end.
#[derive(Debug)]
pub struct Mailbox<T> {
    queue: Arc<ArrayQueue<T>>,
}

/// The control thread's end, and that of whoever watches.
#[derive(Debug)]
pub struct MailSender<T> {
    queue: Arc<ArrayQueue<T>>,
    doorbell: Doorbell,
}

/// A mailbox of `slots` messages.
pub fn mailbox<T>(slots: usize, doorbell: Doorbell) -> (MailSender<T>, Mailbox<T>) {
    let queue = Arc::new(ArrayQueue::new(slots));
    (
        MailSender {
            queue: Arc::clone(&queue),
            doorbell,
        },
        Mailbox { queue },
    )
}

impl<T> Clone for MailSender<T> {
    fn clone(&self) -> Self {
        Self {
            queue: Arc::clone(&self.queue),
            doorbell: self.doorbell.clone(),
        }
    }
}

impl<T> MailSender<T> {
    /// Puts a message and rings. **Errors**: full, the message comes back.
    pub fn try_send(&self, message: T) -> Result<(), T> {
        self.queue.push(message)?;
        self.doorbell.0.ring();
        Ok(())
    }
}

impl<T> Mailbox<T> {
    /// The oldest message. Called after the doorbell's completion, so a message pushed before the ring is seen.
    pub fn take(&mut self) -> Option<T> {
        self.queue.pop()
    }
}
