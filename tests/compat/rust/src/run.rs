// SPDX-License-Identifier: Apache-2.0

//! Arguments, the list of scenarios, their RESULT lines and the hard deadline.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::samples::Outcome;

/// The whole program must end within this time, whatever a broker does.
const HARD_DEADLINE: Duration = Duration::from_secs(240);

pub struct Options {
    pub namesrv: String,
    pub run: String,
    pub scenario: String,
}

pub fn options() -> Options {
    let mut options = Options { namesrv: String::new(), run: String::new(), scenario: "all".to_string() };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().unwrap_or_else(|| usage(&format!("{name} needs a value")));
        match name.as_str() {
            "--namesrv" => options.namesrv = value,
            "--run" => options.run = value,
            "--scenario" => options.scenario = value,
            _ => usage(&format!("unknown option {name}")),
        }
    }
    if options.namesrv.is_empty() || options.run.is_empty() {
        usage("--namesrv and --run are required");
    }
    options
}

fn usage(message: &str) -> ! {
    eprintln!("{message}\nusage: --namesrv IP:PORT --run ID --scenario all|NAME");
    std::process::exit(2);
}

/// Runs the chosen scenarios one after the other and returns the exit code.
pub async fn all<F>(known: &[(&str, bool)], options: &Options, run: F) -> i32
where
    F: AsyncFn(&str, &Options) -> Outcome<String>,
{
    static CURRENT: Mutex<String> = Mutex::new(String::new());
    let chosen: Vec<&str> = known
        .iter()
        .filter(|(name, in_all)| options.scenario == *name || (options.scenario == "all" && *in_all))
        .map(|(name, _)| *name)
        .collect();
    if chosen.is_empty() {
        usage(&format!("no scenario is named {:?}", options.scenario));
    }
    std::thread::spawn(|| {
        std::thread::sleep(HARD_DEADLINE);
        let current = CURRENT.lock().unwrap();
        println!("RESULT {current} FAIL the program ran into its deadline of {HARD_DEADLINE:?}");
        std::process::exit(1);
    });

    let mut failed = false;
    for name in chosen {
        *CURRENT.lock().unwrap() = name.to_string();
        let begin = Instant::now();
        let outcome = run(name, options).await;
        let took = begin.elapsed().as_secs_f32();
        match outcome {
            Ok(detail) => println!("RESULT {name} {detail} ({took:.1}s)"),
            Err(problem) => {
                failed = true;
                println!("RESULT {name} FAIL {} ({took:.1}s)", problem.replace('\n', " / "));
            }
        }
    }
    i32::from(failed)
}
