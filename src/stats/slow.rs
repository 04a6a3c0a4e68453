//! The flight recorder: the slowest deliveries to held pulls of the last minutes, with the time of each hop.

use crate::ids::ConnectionId;
use crate::limits::{SLOW_DELIVERIES_MAX, SLOW_WINDOW_SECONDS};
use std::rc::Rc;

const WINDOW_US: u64 = SLOW_WINDOW_SECONDS * 1_000_000;

/// A held pull that an arrival has answered in this turn.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub group: Rc<str>,
    pub topic: Rc<str>,
    pub connection: ConnectionId,
    pub queue_id: u32,
    /// Of the first message delivered.
    pub offset: u64,
    pub messages: u32,
    pub parked_us: u64,
    /// When the oldest of the messages was appended to the open batch.
    pub appended_us: u64,
    /// Place of its series.
    pub series: u16,
}

/// What all deliveries of a turn have in common. In monotonic microseconds, as everything here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    /// The write that holds the messages had completed.
    pub written_us: u64,
    /// They counted: written, or flushed in SYNC_FLUSH.
    pub visible_us: u64,
    /// The reply was handed to its connection's send.
    pub queued_us: u64,
}

/// A delivery that was slow.
#[derive(Clone, Debug)]
pub struct Slow {
    pub delivery: Delivery,
    pub hops: Hops,
    /// The kernel had taken the reply; `None` if it has not yet, or the connection is closed.
    pub sent_us: Option<u64>,
    /// Sends of its connection that have to end until then.
    sends_left: u8,
}

impl Slow {
    /// From the arrival to the queued reply.
    pub fn total_us(&self) -> u64 {
        self.hops
            .queued_us
            .saturating_sub(self.delivery.appended_us)
    }
}

/// The slowest of the current window and of the one before.
#[derive(Debug, Default)]
pub struct Recorder {
    current: Vec<Slow>,
    previous: Vec<Slow>,
    window_us: u64,
    /// Deliveries up to this long are not among the slowest of the window.
    floor_us: u64,
    /// Deliveries whose replies are on their way.
    unsent: usize,
}

impl Recorder {
    /// Takes the delivery if it is one of the slowest. `sends`: sends of its connection that end before its reply has
    /// left, that of the reply included.
    pub fn offer(&mut self, delivery: &Delivery, hops: Hops, sends: u8) {
        self.turn_page(hops.queued_us);
        let total_us = hops.queued_us.saturating_sub(delivery.appended_us);
        if total_us <= self.floor_us && self.current.len() >= SLOW_DELIVERIES_MAX {
            return;
        }
        let slow = Slow {
            delivery: delivery.clone(),
            hops,
            sent_us: None,
            sends_left: sends,
        };
        self.unsent += usize::from(sends > 0);
        if self.current.len() < SLOW_DELIVERIES_MAX {
            self.current.push(slow);
        } else if let Some(fastest) = self.current.iter_mut().min_by_key(|slow| slow.total_us()) {
            self.unsent -= usize::from(fastest.sends_left > 0);
            *fastest = slow;
        }
        self.floor_us = self.current.iter().map(Slow::total_us).min().unwrap_or(0);
    }

    /// Begins a new window once this one is over; there is no timer, so that an idle shard sleeps.
    fn turn_page(&mut self, now_us: u64) {
        if now_us < self.window_us + WINDOW_US {
            return;
        }
        let waiting = |all: &[Slow]| all.iter().filter(|slow| slow.sends_left > 0).count();
        if now_us >= self.window_us + 2 * WINDOW_US {
            self.unsent -= waiting(&self.current);
            self.current.clear();
        }
        self.unsent -= waiting(&self.previous);
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        self.window_us = now_us;
        self.floor_us = 0;
    }

    /// A send of a connection has ended.
    pub fn on_sent(&mut self, connection: ConnectionId, now_us: u64) {
        if self.unsent == 0 {
            return;
        }
        let all = self.current.iter_mut().chain(&mut self.previous);
        let of_it = all.filter(|slow| slow.delivery.connection == connection);
        for slow in of_it.filter(|slow| slow.sends_left > 0) {
            slow.sends_left -= 1;
            if slow.sends_left == 0 {
                slow.sent_us = Some(now_us);
                self.unsent -= 1;
            }
        }
    }

    /// The connection is gone: its replies never leave.
    pub fn on_closed(&mut self, connection: ConnectionId) {
        if self.unsent == 0 {
            return;
        }
        let all = self.current.iter_mut().chain(&mut self.previous);
        let of_it = all.filter(|slow| slow.delivery.connection == connection);
        for slow in of_it.filter(|slow| slow.sends_left > 0) {
            slow.sends_left = 0;
            self.unsent -= 1;
        }
    }

    /// The slowest of the last one to two windows, slowest first.
    pub fn slowest(&self, now_us: u64) -> Vec<&Slow> {
        let all = self.current.iter().chain(&self.previous);
        let recent = all.filter(|slow| slow.hops.queued_us + 2 * WINDOW_US > now_us);
        let mut slowest: Vec<&Slow> = recent.collect();
        slowest.sort_by_key(|slow| std::cmp::Reverse(slow.total_us()));
        slowest.truncate(SLOW_DELIVERIES_MAX);
        slowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(appended_us: u64) -> Delivery {
        Delivery {
            group: "G".into(),
            topic: "T".into(),
            connection: ConnectionId {
                index: 1,
                generation: 1,
            },
            queue_id: 0,
            offset: 0,
            messages: 1,
            parked_us: 0,
            appended_us,
            series: 1,
        }
    }

    fn offer(recorder: &mut Recorder, queued_us: u64, total_us: u64) {
        let hops = Hops {
            queued_us,
            ..Hops::default()
        };
        recorder.offer(&delivery(queued_us - total_us), hops, 1);
    }

    fn totals(recorder: &Recorder, now_us: u64) -> Vec<u64> {
        let slowest = recorder.slowest(now_us);
        slowest.iter().map(|slow| slow.total_us()).collect()
    }

    #[test]
    fn only_the_slowest_are_kept() {
        let mut recorder = Recorder::default();
        let count = 3 * SLOW_DELIVERIES_MAX as u64;
        // In an order that is neither rising nor falling.
        for index in 0..count {
            offer(&mut recorder, 10_000, index * 7 % count);
        }
        let kept = SLOW_DELIVERIES_MAX as u64;
        let expected: Vec<u64> = (count - kept..count).rev().collect();
        assert_eq!(totals(&recorder, 10_000), expected);
    }

    #[test]
    fn old_ones_are_forgotten() {
        let mut recorder = Recorder::default();
        offer(&mut recorder, WINDOW_US + 9_000, 9_000);
        offer(&mut recorder, 2 * WINDOW_US + 9_000, 50);
        assert_eq!(totals(&recorder, 2 * WINDOW_US + 9_000), [9_000, 50]);
        assert_eq!(totals(&recorder, 3 * WINDOW_US + 9_000), [50]);
        offer(&mut recorder, 9 * WINDOW_US, 1);
        assert_eq!(totals(&recorder, 9 * WINDOW_US), [1]);
        assert_eq!(recorder.unsent, 1);
    }

    #[test]
    fn a_reply_has_left_when_its_send_has_ended() {
        let mut recorder = Recorder::default();
        let other = ConnectionId {
            index: 1,
            generation: 2,
        };
        recorder.offer(&delivery(0), Hops::default(), 2);
        let connection = recorder.current[0].delivery.connection;
        recorder.on_sent(other, 5);
        recorder.on_sent(connection, 6);
        assert_eq!(recorder.current[0].sent_us, None);
        recorder.on_sent(connection, 7);
        assert_eq!(recorder.current[0].sent_us, Some(7));
        assert_eq!(recorder.unsent, 0);
        recorder.offer(&delivery(0), Hops::default(), 1);
        recorder.on_closed(connection);
        recorder.on_sent(connection, 8);
        assert_eq!((recorder.current[1].sent_us, recorder.unsent), (None, 0));
    }
}
