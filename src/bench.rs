//! `ringmq bench`: load on a broker, any that speaks the protocol, and what it takes to answer. A client of the wire
//! that shares nothing with the server but the codec.

mod arguments;
mod consumer;
mod floor;
mod holds;
mod latency;
mod load;
mod pair;
mod payload;
mod process;
mod producer;
mod race;
mod report;
mod throughput;
mod verify;
mod wire;

pub use arguments::command;
use clap::ArgMatches;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by Ctrl-C; a second one ends the process.
#[derive(Clone, Default)]
struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    fn register() -> Result<Self, String> {
        let interrupt = Self::default();
        let flag = &interrupt.0;
        // In this order: the first signal finds the flag not set yet.
        signal_hook::flag::register_conditional_shutdown(libc::SIGINT, 130, Arc::clone(flag))
            .and_then(|_| signal_hook::flag::register(libc::SIGINT, Arc::clone(flag)))
            .map_err(|error| error.to_string())?;
        Ok(interrupt)
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Binds the thread to a processor. **Errors**: it is not allowed to be there.
fn pin(cpu: usize) -> Result<(), String> {
    let core = core_affinity::CoreId { id: cpu };
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    if allowed.contains(&core) && core_affinity::set_for_current(core) {
        return Ok(());
    }
    Err(format!(
        "processor {cpu} is not one that this process may use"
    ))
}

/// Runs it, if this is the subcommand. **Errors**: one line for the user.
pub fn run(name: &str, matches: &ArgMatches) -> Option<Result<(), String>> {
    if name != "bench" {
        return None;
    }
    let (kind, matches) = matches.subcommand()?;
    Some(measure(kind, matches))
}

fn measure(kind: &str, matches: &ArgMatches) -> Result<(), String> {
    let interrupt = Interrupt::register()?;
    if let Some(cpu) = matches.get_one::<usize>("cpu") {
        pin(*cpu)?;
    }
    match kind {
        "floor" => floor::run(matches, &interrupt),
        kind => {
            let runtime = tokio_uring::Runtime::new(&tokio_uring::builder());
            let runtime = runtime.map_err(|error| format!("io_uring: {error}"))?;
            runtime.block_on(against_broker(kind, matches, &interrupt))
        }
    }
}

/// With a topic of its own, which is deleted afterwards.
async fn against_broker(
    kind: &str,
    matches: &ArgMatches,
    interrupt: &Interrupt,
) -> Result<(), String> {
    let queues = match kind {
        "race" => 1,
        "holds" => holds::QUEUES,
        _ => arguments::value(matches, "queues"),
    };
    let target = load::Target::new(matches, queues).await?;
    let (address, encoding, topic) = (target.address, target.encoding, target.topic.clone());
    wire::create_topic(address, encoding, &topic, target.queues).await?;
    let measured = match kind {
        "throughput" => throughput::measure(matches, interrupt, target).await,
        "holds" => holds::measure(matches, interrupt, target).await,
        "race" => race::measure(matches, interrupt, target).await,
        _ => latency::measure(matches, interrupt, target).await,
    };
    let deleted = wire::delete_topic(address, encoding, &topic).await;
    let (report, failure) = measured?;
    report.publish(matches)?;
    failure.map_or(deleted, Err)
}
