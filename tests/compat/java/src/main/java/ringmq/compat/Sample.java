// SPDX-License-Identifier: Apache-2.0
package ringmq.compat;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The content of one message, a pure function of its number. */
final class Sample {
    final String id;
    final String tag;
    final byte[] body;
    final Map<String, String> properties = new LinkedHashMap<>();

    Sample(int number, String tag) {
        this.id = String.format("m%05d", number);
        this.tag = tag;
        this.body = body(number, id);
        properties.put("id", id);
        properties.put("number", Integer.toString(number));
        properties.put("sentence", "two words, 100% {\"json\":true}; ünïcode 汉字");
    }

    private static byte[] body(int number, String id) {
        switch (number % 5) {
            case 0:
                return ("plain " + id).getBytes(StandardCharsets.UTF_8);
            case 1:
                return ("ünïcode 汉字 🚀 " + id).getBytes(StandardCharsets.UTF_8);
            case 2: { // every byte value
                ByteArrayOutputStream out = new ByteArrayOutputStream();
                for (int b = 0; b < 256; b++) out.write(b);
                out.writeBytes(id.getBytes(StandardCharsets.UTF_8));
                return out.toByteArray();
            }
            case 3: // large enough for the client to compress it
                return ("compress me " + id + " ").repeat(1000).getBytes(StandardCharsets.UTF_8);
            default: { // large, and compression does not help
                byte[] noise = new byte[20_000];
                new Random(number).nextBytes(noise);
                return noise;
            }
        }
    }

    static List<Sample> range(int from, int to, String tag) {
        List<Sample> out = new ArrayList<>();
        for (int i = from; i < to; i++) out.add(new Sample(i, tag));
        return out;
    }

    Message message(String topic) {
        Message m = new Message(topic, tag, id + " second-" + id, body);
        properties.forEach(m::putUserProperty);
        return m;
    }

    /** What is wrong with a message that should be this one, or null. */
    String difference(MessageExt m) {
        if (!Arrays.equals(m.getBody(), body)) return "body has " + m.getBody().length + " bytes instead of the " + body.length + " sent, or differs";
        if (!tag.equals(m.getTags() == null ? "" : m.getTags())) return "tag " + m.getTags() + " instead of " + tag;
        if (!(id + " second-" + id).equals(m.getKeys())) return "keys " + m.getKeys();
        for (Map.Entry<String, String> e : properties.entrySet()) {
            if (!e.getValue().equals(m.getUserProperty(e.getKey()))) return "property " + e.getKey() + " is " + m.getUserProperty(e.getKey());
        }
        if (m.getStoreHost() == null || m.getBornTimestamp() == 0 || m.getStoreTimestamp() == 0) return "no store host, born or store time";
        if (m.getReconsumeTimes() != 0) return "reconsumed " + m.getReconsumeTimes() + " times";
        return null;
    }
}
