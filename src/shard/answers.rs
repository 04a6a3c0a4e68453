//! What a shard tells whoever watches it: copies, made on its thread and read on another.

use super::{Core, Phase};
use crate::broker::{Context, report};
use crate::control::mail::Ask;
use crate::stats::report::{Gauges, HoldPage, HoldsWanted, Report, SlowRow, State};
use crate::stats::slow::Slow;
use crate::storage::Fetched;

impl Core {
    /// Answers a question. That nobody waits for the answer any more is no error.
    pub(super) fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::State(answer) => _ = answer.send(self.state()),
            Ask::Report(answer) => _ = answer.send(Box::new(self.statistics())),
            Ask::Holds(wanted, answer) => _ = answer.send(self.holds(&wanted)),
            Ask::Slow(answer) => _ = answer.send(self.slowest()),
        }
    }

    fn state(&self) -> State {
        State {
            is_stopping: self.phase != Phase::Serving,
            read_only: self.store.failure().map(str::to_owned),
            disk_full: self.store.disk_full(),
        }
    }

    fn statistics(&mut self) -> Report {
        let state = self.state();
        let gauges = self.gauges();
        let none = Fetched::default();
        let cx = context!(self, &none, true);
        let lags = report::lags(&self.broker, cx);
        let counters = &self.counters;
        let tables = &counters.tables;
        Report {
            values: counters.values(),
            closed: tables.closed,
            times: tables.times.clone(),
            log: self.store.times().clone(),
            topics: counters.topics(),
            deliveries: counters.deliveries(),
            rpcs: tables.rpcs.all().to_vec(),
            dead_letters: counters.dead_letters(),
            lags,
            consumers: report::consumers(&self.broker),
            producers: report::producers(&self.broker),
            gauges,
            state,
        }
    }

    fn gauges(&self) -> Gauges {
        let store = &self.store;
        Gauges {
            log_start: store.log_bounds().0.0,
            appended: store.appended().0,
            written: store.written().0,
            flushed: store.flushed().0,
            visible: store.visible().0,
            sends_waiting: self.acks.len() as u64,
            reads_waiting: self.cold.len() as u64,
            out_bytes: self.connections.out_bytes as u64,
            partial_frame_bytes: self.connections.partial_bytes as u64,
            topics: self.broker.topics.len() as u64,
            groups: self.broker.groups.len() as u64,
            permission: self.broker.config.permission,
        }
    }

    fn holds(&mut self, wanted: &HoldsWanted) -> HoldPage {
        let none = Fetched::default();
        let cx = context!(self, &none, true);
        let connections = &self.connections;
        let peer_of = |id| connections.get(id).map(|connection| connection.peer);
        report::holds(&self.broker, wanted, self.id.0, peer_of, cx)
    }

    fn slowest(&self) -> Vec<SlowRow> {
        let slowest = self.counters.tables.slow.slowest(self.now.monotonic_us);
        slowest
            .into_iter()
            .map(|slow| self.slow_row(slow))
            .collect()
    }

    fn slow_row(&self, slow: &Slow) -> SlowRow {
        let delivery = &slow.delivery;
        let behind = |at_us: u64| at_us.saturating_sub(delivery.appended_us);
        let ago_ms = self.now.monotonic_us.saturating_sub(delivery.appended_us) / 1000;
        let connection = self.connections.get(delivery.connection);
        SlowRow {
            shard: self.id.0,
            broker: self.broker.config.broker_name.clone(),
            topic: delivery.topic.to_string(),
            queue_id: delivery.queue_id,
            group: delivery.group.to_string(),
            client: connection.map(|connection| connection.peer.to_string()),
            asked_offset: delivery.offset,
            messages: delivery.messages,
            arrived: self.now.wall_ms.saturating_sub(ago_ms),
            held_before_us: delivery.appended_us.saturating_sub(delivery.parked_us),
            written_us: behind(slow.hops.written_us),
            visible_us: behind(slow.hops.visible_us),
            reply_queued_us: behind(slow.hops.queued_us),
            sent_us: slow.sent_us.map(behind),
        }
    }
}
