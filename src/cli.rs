//! Subcommands that ask a running broker.

mod fetch;
pub mod holds;
pub mod table;

use std::io::Write;

/// Prints the answer. **Errors**: one line for the user.
pub fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has seen enough, as `head` has.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| error.to_string()),
    }
}
