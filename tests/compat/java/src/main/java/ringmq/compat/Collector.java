// SPDX-License-Identifier: Apache-2.0
package ringmq.compat;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageExt;

/** What has arrived. */
final class Collector {
    static final String FENCE = "fence";
    /** Breaks what arrives, to show that the checks notice: lose, twice or body. */
    private static final String FAULT = System.getenv().getOrDefault("RINGMQ_COMPAT_FAULT", "");

    private final Map<String, List<MessageExt>> got = new TreeMap<>();
    private final Map<String, Set<String>> fences = new HashMap<>();
    private int seen;

    synchronized void add(MessageExt m) {
        String token = m.getUserProperty(FENCE);
        if (token != null) {
            fences.computeIfAbsent(token, t -> new HashSet<>()).add(m.getUserProperty("place"));
            return;
        }
        String id = m.getUserProperty("id");
        List<MessageExt> list = got.computeIfAbsent(id == null ? m.getMsgId() : id, i -> new ArrayList<>());
        if (++seen == 7) {
            if (FAULT.equals("lose")) {
                if (list.isEmpty()) got.remove(id);
                return;
            }
            if (FAULT.equals("twice")) list.add(m);
            if (FAULT.equals("body")) m.setBody("broken".getBytes());
        }
        list.add(m);
    }

    synchronized int fences(String token) {
        return fences.getOrDefault(token, Set.of()).size();
    }

    synchronized int distinct() {
        return got.size();
    }

    synchronized MessageExt first(String id) {
        List<MessageExt> list = got.get(id);
        return list == null ? null : list.get(0);
    }

    synchronized List<String> missing(Collection<Sample> samples) {
        List<String> out = new ArrayList<>();
        for (Sample s : samples) if (!got.containsKey(s.id)) out.add(s.id);
        return out;
    }

    /** The samples arrived once each, unchanged, and nothing else did. */
    synchronized void exactly(Collection<Sample> samples) {
        List<String> problems = new ArrayList<>();
        Set<String> expected = new HashSet<>();
        for (Sample s : samples) {
            expected.add(s.id);
            List<MessageExt> list = got.getOrDefault(s.id, List.of());
            if (list.size() != 1) problems.add(s.id + " arrived " + list.size() + " times");
            for (MessageExt m : list) {
                String difference = s.difference(m);
                if (difference != null) problems.add(s.id + ": " + difference);
            }
        }
        for (Map.Entry<String, List<MessageExt>> e : got.entrySet()) {
            if (!expected.contains(e.getKey())) problems.add(e.getKey() + " was not expected, " + e.getValue().size() + " times");
        }
        Kit.check(problems.isEmpty(), problems.size() + " problems: " + Kit.some(problems));
    }

    /** A view that is limited to these samples. */
    synchronized Collector only(Collection<Sample> samples) {
        Collector view = new Collector();
        for (Sample s : samples) if (got.containsKey(s.id)) view.got.put(s.id, got.get(s.id));
        return view;
    }

    /** Both together. */
    Collector plus(Collector other) {
        Collector view = new Collector();
        for (Collector c : List.of(this, other)) {
            synchronized (c) {
                c.got.forEach((id, list) -> view.got.computeIfAbsent(id, i -> new ArrayList<>()).addAll(list));
            }
        }
        return view;
    }
}
