//! The embedded name server as the control thread's tasks share it: the state, and what its effects cause.

use super::log::Limit;
use crate::clock::Clock;
use crate::namesrv::{Broker, Effects, NameServer, Source};
use crate::protocol::bodies::{Dialect, TopicTable};
use crate::protocol::calls::ClientAnswer;
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::Command;
use crate::protocol::response::Response;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep};

/// Shared by the main loop and all connections; used on the control thread only.
pub struct Embedded {
    state: RefCell<NameServer>,
    clock: Clock,
    /// A broker was registered, perhaps with a deadline before all others.
    registered: Notify,
    kv: KvFile,
    log: Limit,
    refused_log: Limit,
}

/// `kvConfig.json`, written off the loop. Changes that come while it is written go into one more write.
struct KvFile {
    path: PathBuf,
    /// Newest contents, and how many there were before them.
    wanted: RefCell<Rc<Vec<u8>>>,
    wanted_number: Cell<u64>,
    /// Number of the contents on disk; the lock is held while writing.
    written_number: Mutex<u64>,
}

impl Embedded {
    pub fn new(state: NameServer, clock: Clock, kv_path: PathBuf) -> Self {
        Self {
            state: RefCell::new(state),
            clock,
            registered: Notify::new(),
            kv: KvFile {
                path: kv_path,
                wanted: RefCell::default(),
                wanted_number: Cell::new(0),
                written_number: Mutex::new(0),
            },
            log: Limit::new(),
            refused_log: Limit::new(),
        }
    }

    /// Answers a request once its effects are done; `None` for one-way ones.
    pub async fn handle(&self, command: &Command<'_>, source: Source) -> Option<Response> {
        let now = self.clock.now();
        let answer = self.state.borrow_mut().handle(command, source, now);
        if command.code == RequestCode::REGISTER_BROKER.0 {
            self.registered.notify_one();
        }
        match self.perform().await {
            Ok(()) => answer,
            // It stays in force until the next start; whoever asked has to know.
            Err(error) => answer.map(|_| {
                let remark = format!("kvConfig.json could not be written: {error}");
                Response::error(ResponseCode::SYSTEM_ERROR, remark)
            }),
        }
    }

    /// **Errors**: the name server's refusal.
    pub fn register(
        &self,
        broker: &Broker<'_>,
        table: &TopicTable,
        source: Source,
    ) -> Result<(), String> {
        let now = self.clock.now();
        let result = self.state.borrow_mut().register(broker, table, source, now);
        self.registered.notify_one();
        self.log_changes();
        result.map(|_| ())
    }

    /// The route of a topic, as to a request 105.
    pub fn route(&self, topic: &str) -> ClientAnswer {
        let route = self.state.borrow().route(topic);
        let is_known = route.is_some();
        let code = if is_known {
            ResponseCode::SUCCESS
        } else {
            ResponseCode::TOPIC_NOT_EXIST
        };
        ClientAnswer {
            code: code.0,
            remark: (!is_known).then(|| format!("no route of topic[{topic}]")),
            body: route
                .map(|r| r.encode(Dialect::Strict).into())
                .unwrap_or_default(),
        }
    }

    pub fn unregister(&self, source: Source) {
        self.state.borrow_mut().unregister_source(source);
        self.log_changes();
    }

    pub fn on_closed(&self, source: Source) {
        self.state.borrow_mut().on_closed(source);
        self.log_changes();
    }

    /// Drops silent brokers at their deadlines, for as long as the runtime lives.
    pub async fn expire(self: Rc<Self>) {
        loop {
            let next = self.state.borrow().next_expiry();
            let now = self.clock.now().monotonic_us;
            match next.map(|at| Duration::from_micros(at.saturating_sub(now))) {
                None => self.registered.notified().await,
                Some(wait) => tokio::select! {
                    () = sleep(wait) => {}
                    () = self.registered.notified() => {}
                },
            }
            self.state.borrow_mut().expire(self.clock.now());
            self.log_changes();
        }
    }

    /// Effects of calls that can't change the key-value configuration.
    fn log_changes(&self) {
        let effects = self.state.borrow_mut().take_effects();
        debug_assert!(effects.kv_file.is_none(), "only requests change it");
        self.log(&effects);
    }

    async fn perform(&self) -> Result<(), String> {
        let mut effects = self.state.borrow_mut().take_effects();
        self.log(&effects);
        match effects.kv_file.take() {
            Some(contents) => self.kv.write(contents).await,
            None => Ok(()),
        }
    }

    fn log(&self, effects: &Effects) {
        if let Some(reason) = &effects.refused
            && let Some(left_out) = self.refused_log.admit(Instant::now())
        {
            tracing::warn!(
                reason,
                lines_left_out = left_out,
                "the name server refused a registration"
            );
        }
        for change in &effects.changes {
            let Some(left_out) = self.log.admit(Instant::now()) else {
                continue;
            };
            let text = change.kind.text();
            let (broker, id, address) = (&change.broker, change.id, &change.address);
            if left_out == 0 {
                tracing::info!(broker, id, address, "{text}");
            } else {
                tracing::info!(broker, id, address, lines_left_out = left_out, "{text}");
            }
        }
    }
}

impl KvFile {
    /// Returns once these contents, or newer ones, are on disk.
    async fn write(&self, contents: Vec<u8>) -> Result<(), String> {
        let number = self.wanted_number.get() + 1;
        self.wanted_number.set(number);
        *self.wanted.borrow_mut() = Rc::new(contents);
        let mut written = self.written_number.lock().await;
        if *written >= number {
            return Ok(());
        }
        let (path, contents) = (self.path.clone(), self.wanted.borrow().to_vec());
        let newest = self.wanted_number.get();
        let replace = move || crate::io::fs::replace_file(&path, &contents, true);
        let result = tokio::task::spawn_blocking(replace).await;
        let result = result.map_err(|e| e.to_string());
        if let Err(error) = result.and_then(|r| r.map_err(|e| e.to_string())) {
            tracing::error!(error, path = %self.path.display(), "kvConfig.json could not be written");
            return Err(error);
        }
        *written = newest;
        Ok(())
    }
}
