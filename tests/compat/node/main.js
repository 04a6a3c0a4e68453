// SPDX-License-Identifier: Apache-2.0

// Scenarios of the Node client `ali-ons` against a running broker.
//
// Every scenario prints one line `RESULT <scenario> PASS|FAIL|SKIP <detail>`.
// The exit code is 0 only when nothing failed.
'use strict';

const { parseArgs } = require('node:util');
const { Kit, startInnerProducer } = require('./kit');
const { scenarios, Skip } = require('./scenarios');

// The whole program must end within this time, whatever a broker does.
const HARD_DEADLINE_MS = 240_000;

function usage(message) {
  console.error(`${message}\nusage: --namesrv IP:PORT --run ID --scenario all|NAME`);
  process.exit(2);
}

function arguments_() {
  try {
    const { values } = parseArgs({
      options: {
        namesrv: { type: 'string' },
        run: { type: 'string' },
        scenario: { type: 'string', default: 'all' },
      },
    });
    if (values.namesrv && values.run) return values;
  } catch (err) {
    usage(err.message);
  }
  return usage('--namesrv and --run are required');
}

async function runOne(scenario, namesrv, run) {
  const begin = Date.now();
  const kit = new Kit(scenario.name, namesrv, run);
  const took = () => `(${((Date.now() - begin) / 1000).toFixed(1)}s)`;
  try {
    const detail = await scenario.run(kit);
    console.log(`RESULT ${scenario.name} PASS ${detail} ${took()}`);
    return true;
  } catch (err) {
    if (err instanceof Skip) {
      console.log(`RESULT ${scenario.name} SKIP ${err.message}`);
      return true;
    }
    const text = String(err.message).replace(/\s*\n\s*/g, ' / ');
    console.log(`RESULT ${scenario.name} FAIL ${text} ${took()}`);
    return false;
  } finally {
    await kit.close();
  }
}

async function main() {
  const { namesrv, run, scenario } = arguments_();
  const chosen = scenarios.filter(s => s.name === scenario || (scenario === 'all' && s.inAll));
  if (chosen.length === 0) usage(`no scenario is named "${scenario}"`);

  let current = 'start';
  setTimeout(() => {
    console.log(`RESULT ${current} FAIL the program ran into its deadline of ${HARD_DEADLINE_MS / 1000}s`);
    process.exit(1);
  }, HARD_DEADLINE_MS).unref();

  startInnerProducer(namesrv);
  let failed = 0;
  for (const s of chosen) {
    current = s.name;
    if (!await runOne(s, namesrv, run)) failed++;
  }
  process.exit(failed ? 1 : 0);
}

main();
