// SPDX-License-Identifier: Apache-2.0
package ringmq.compat;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.common.MQVersion;

/**
 * Scenarios of the Java client. Every scenario prints one line {@code RESULT <scenario> PASS|FAIL|SKIP <detail>};
 * the exit code is 0 only when nothing failed.
 */
public final class Main {
    private static final long DEADLINE_SECONDS = 240;
    private static volatile String current = "start";

    interface Scenario {
        /** Returns a detail to print. */
        String run(Kit kit) throws Exception;
    }

    private static final java.util.Set<String> HALVES = java.util.Set.of("before_restart", "after_restart", "read_again", "cluster");

    public static void main(String[] args) {
        Map<String, String> options = new LinkedHashMap<>();
        for (int i = 0; i + 1 < args.length; i += 2) options.put(args[i], args[i + 1]);
        String namesrv = options.get("--namesrv");
        String run = options.get("--run");
        String wanted = options.getOrDefault("--scenario", "all");
        if (namesrv == null || run == null || args.length % 2 != 0) {
            System.err.println("usage: --namesrv HOST:PORT --run ID [--scenario all|NAME]");
            System.exit(2);
        }
        System.out.println("client " + MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION) + ", headers "
            + System.getProperty("rocketmq.serialize.type", "JSON"));

        Thread guard = new Thread(() -> {
            try {
                Thread.sleep(DEADLINE_SECONDS * 1000);
            } catch (InterruptedException e) {
                return;
            }
            System.out.println("RESULT " + current + " FAIL the program ran into its deadline of " + DEADLINE_SECONDS + " s");
            System.out.flush();
            Runtime.getRuntime().halt(1);
        });
        guard.setDaemon(true);
        guard.start();

        int ran = 0;
        boolean failed = false;
        for (Map.Entry<String, Scenario> e : Scenarios.ALL.entrySet()) {
            // The halves of the broker restart need a restart between them and the cluster needs brokers: only runners ask.
            String name = e.getKey();
            boolean half = HALVES.contains(name);
            if (!wanted.equals(name) && (half || !wanted.equals("all"))) continue;
            ran++;
            current = e.getKey();
            failed |= !one(e.getKey(), e.getValue(), namesrv, run);
        }
        if (ran == 0) {
            System.err.println("no scenario is named " + wanted);
            System.exit(2);
        }
        System.out.flush();
        System.exit(failed ? 1 : 0);
    }

    private static boolean one(String name, Scenario scenario, String namesrv, String run) {
        long begin = System.nanoTime();
        String line;
        boolean passed = false;
        try (Kit kit = new Kit(name, namesrv, run)) {
            line = "PASS " + scenario.run(kit);
            passed = true;
        } catch (Throwable t) {
            t.printStackTrace();
            line = "FAIL " + String.valueOf(t.getMessage() == null ? t : t.getMessage()).replace('\n', ' ');
        }
        System.out.printf("RESULT %s %s (%.1f s)%n", name, line, (System.nanoTime() - begin) / 1e9);
        return passed;
    }
}
