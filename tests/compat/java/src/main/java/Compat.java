import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Each scenario prints one line: RESULT name PASS|FAIL detail. */
public class Compat {
    static String namesrv;
    static String run;
    static boolean failed;

    interface Scenario { void run() throws Exception; }

    static void scenario(String wanted, String name, Scenario body) {
        if (!wanted.equals("all") && !wanted.equals(name)) return;
        if (wanted.equals("all") && name.endsWith("_restart")) return;
        try {
            body.run();
            System.out.println("RESULT " + name + " PASS");
        } catch (Throwable t) {
            failed = true;
            t.printStackTrace(System.out);
            System.out.println("RESULT " + name + " FAIL " + t);
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new IllegalStateException(what);
    }

    static void await(BooleanSupplier holds, String what) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!holds.getAsBoolean()) {
            if (System.nanoTime() > end) throw new IllegalStateException("not in time: " + what);
            Thread.sleep(10);
        }
    }

    static DefaultMQProducer producer(String name) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("P_" + name + "_" + run);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(name + run);
        producer.start();
        return producer;
    }

    /** Counts every body it is given. */
    static class Consumer {
        final Map<String, Integer> seen = new ConcurrentHashMap<>();
        final Map<String, MessageExt> messages = new ConcurrentHashMap<>();
        final DefaultMQPushConsumer consumer;

        Consumer(String group, String topic, String expression, String instance) throws Exception {
            consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(namesrv);
            consumer.setInstanceName(instance + run);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setPersistConsumerOffsetInterval(500);
            consumer.subscribe(topic, expression);
            consumer.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
                for (MessageExt m : list) {
                    String body = new String(m.getBody(), StandardCharsets.UTF_8);
                    messages.put(body, m);
                    seen.merge(body, 1, Integer::sum);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }

        void expect(Set<String> bodies, String what) throws InterruptedException {
            await(() -> seen.keySet().containsAll(bodies), what + ": " + seen.size() + " of " + bodies.size());
            check(seen.keySet().equals(bodies), what + ": got what was not sent for it");
        }
    }

    static Message message(String topic, String tag, String body) {
        Message m = new Message(topic, tag, "key-" + body, body.getBytes(StandardCharsets.UTF_8));
        m.putUserProperty("user", "value-" + body);
        return m;
    }

    static void sends() throws Exception {
        String topic = "Send_" + run;
        DefaultMQProducer producer = producer("send");
        Set<String> sent = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 50; i++) {
            SendResult r = producer.send(message(topic, "A", "sync" + i));
            check(r.getSendStatus() == SendStatus.SEND_OK, "sync " + r);
            sent.add("sync" + i);
        }
        CountDownLatch latch = new CountDownLatch(50);
        for (int i = 0; i < 50; i++) {
            String body = "async" + i;
            producer.send(message(topic, "A", body), new SendCallback() {
                public void onSuccess(SendResult r) { sent.add(body); latch.countDown(); }
                public void onException(Throwable t) { t.printStackTrace(); }
            });
        }
        check(latch.await(20, TimeUnit.SECONDS), "async sends");
        for (int i = 0; i < 50; i++) {
            producer.sendOneway(message(topic, "A", "oneway" + i));
            sent.add("oneway" + i);
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 50; i++) { batch.add(message(topic, "A", "batch" + i)); sent.add("batch" + i); }
        check(producer.send(batch).getSendStatus() == SendStatus.SEND_OK, "batch");
        Consumer consumer = new Consumer("C_send_" + run, topic, "*", "send");
        consumer.expect(sent, "sent messages");
        for (Map.Entry<String, MessageExt> e : consumer.messages.entrySet()) {
            check(e.getValue().getKeys().equals("key-" + e.getKey()), "keys");
            check(("value-" + e.getKey()).equals(e.getValue().getUserProperty("user")), "properties");
        }
        check(consumer.seen.values().stream().allMatch(n -> n == 1), "each message once");
        consumer.consumer.shutdown();
        producer.shutdown();
    }

    static void tags() throws Exception {
        String topic = "Tags_" + run;
        DefaultMQProducer producer = producer("tags");
        producer.send(message(topic, "X", "first"));
        Consumer all = new Consumer("C_all_" + run, topic, "*", "all");
        Consumer one = new Consumer("C_one_" + run, topic, "A", "one");
        Consumer two = new Consumer("C_two_" + run, topic, "A || B", "two");
        for (int i = 0; i < 30; i++) for (String tag : new String[] {"A", "B", "C"}) producer.send(message(topic, tag, tag + i));
        Set<String> a = ConcurrentHashMap.newKeySet(), ab = ConcurrentHashMap.newKeySet(), abc = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 30; i++) { a.add("A" + i); ab.add("A" + i); ab.add("B" + i); abc.add("A" + i); abc.add("B" + i); abc.add("C" + i); }
        abc.add("first");
        all.expect(abc, "*"); one.expect(a, "A"); two.expect(ab, "A || B");
        all.consumer.shutdown(); one.consumer.shutdown(); two.consumer.shutdown(); producer.shutdown();
    }

    static void rebalance() throws Exception {
        String topic = "Balance_" + run, group = "C_balance_" + run;
        DefaultMQProducer producer = producer("balance");
        producer.send(message(topic, "A", "first"));
        Consumer one = new Consumer(group, topic, "*", "b1"), two = new Consumer(group, topic, "*", "b2");
        int n = 0;
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (one.seen.size() < 10 || two.seen.size() < 10) {
            check(System.nanoTime() < end, "both members get messages: " + one.seen.size() + " " + two.seen.size());
            producer.send(message(topic, "A", "m" + n++));
            Thread.sleep(5);
        }
        two.consumer.shutdown();
        int before = n;
        for (int i = 0; i < 100; i++) producer.send(message(topic, "A", "m" + n++));
        final int last = n;
        await(() -> { for (int i = before; i < last; i++) if (!one.seen.containsKey("m" + i)) return false; return true; },
            "the member that stayed gets all");
        one.consumer.shutdown(); producer.shutdown();
    }

    static void restartConsumer() throws Exception {
        String topic = "Offset_" + run, group = "C_offset_" + run;
        DefaultMQProducer producer = producer("offset");
        Set<String> first = ConcurrentHashMap.newKeySet(), second = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 40; i++) { producer.send(message(topic, "A", "a" + i)); first.add("a" + i); }
        Consumer consumer = new Consumer(group, topic, "*", "o1");
        consumer.expect(first, "first part");
        consumer.consumer.shutdown();
        for (int i = 0; i < 40; i++) { producer.send(message(topic, "A", "b" + i)); second.add("b" + i); }
        consumer = new Consumer(group, topic, "*", "o2");
        consumer.expect(second, "second part, and nothing again");
        consumer.consumer.shutdown(); producer.shutdown();
    }

    static void beforeRestart() throws Exception {
        String topic = "Kept_" + run, group = "C_kept_" + run;
        DefaultMQProducer producer = producer("kept");
        Set<String> first = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 60; i++) { producer.send(message(topic, "A", "a" + i)); first.add("a" + i); }
        Consumer consumer = new Consumer(group, topic, "*", "k1");
        consumer.expect(first, "first part");
        consumer.consumer.shutdown();
        for (int i = 0; i < 40; i++) producer.send(message(topic, "A", "b" + i));
        producer.shutdown();
    }

    static void afterRestart() throws Exception {
        Set<String> second = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 40; i++) second.add("b" + i);
        Consumer consumer = new Consumer("C_kept_" + run, "Kept_" + run, "*", "k2");
        consumer.expect(second, "what was left, and nothing again");
        consumer.consumer.shutdown();
    }

    static void pull() throws Exception {
        String topic = "Pull_" + run;
        DefaultMQProducer producer = producer("pull");
        Set<String> sent = ConcurrentHashMap.newKeySet(), got = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 40; i++) { producer.send(message(topic, "A", "p" + i)); sent.add("p" + i); }
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("C_pull_" + run);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        await(() -> {
            for (MessageExt m : consumer.poll(200)) got.add(new String(m.getBody(), StandardCharsets.UTF_8));
            return got.containsAll(sent);
        }, "lite pull");
        consumer.shutdown(); producer.shutdown();
    }

    public static void main(String[] args) {
        namesrv = args[0];
        run = args[1];
        String wanted = args[2];
        scenario(wanted, "sends", Compat::sends);
        scenario(wanted, "tags", Compat::tags);
        scenario(wanted, "rebalance", Compat::rebalance);
        scenario(wanted, "restart_consumer", Compat::restartConsumer);
        scenario(wanted, "pull", Compat::pull);
        scenario(wanted, "before_restart", Compat::beforeRestart);
        scenario(wanted, "after_restart", Compat::afterRestart);
        System.exit(failed ? 1 : 0);
    }
}
