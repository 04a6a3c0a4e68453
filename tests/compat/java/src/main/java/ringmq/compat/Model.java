// SPDX-License-Identifier: Apache-2.0
package ringmq.compat;

import static ringmq.compat.Kit.await;
import static ringmq.compat.Kit.check;
import static ringmq.compat.Kit.sent;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Retries and dead letters, delays, consumption in order, broadcasting. */
final class Model {
    static final Map<String, Main.Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.put("retry_dlq", Model::retryDlq);
        ALL.put("delay", Model::delay);
        ALL.put("orderly", Model::orderly);
        ALL.put("broadcast", Model::broadcast);
    }

    private static DefaultMQPushConsumer consumer(Kit kit, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(kit.namesrv);
        consumer.setInstanceName(kit.nextInstance());
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    private static Runnable start(Kit kit, DefaultMQPushConsumer consumer) throws Exception {
        consumer.start();
        return kit.onClose(consumer::shutdown);
    }

    /** A message that always fails is retried as often as is allowed, then is in the dead letters, once. */
    static String retryDlq(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        Sample bad = new Sample(0, "TagA");
        Sample shy = new Sample(1, "TagA");
        ConcurrentLinkedQueue<Integer> attempts = new ConcurrentLinkedQueue<>();
        ConcurrentLinkedQueue<Integer> second = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = consumer(kit, kit.group, kit.topic);
        consumer.setMaxReconsumeTimes(2);
        consumer.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            boolean fails = false;
            for (MessageExt m : list) {
                boolean isBad = bad.id.equals(m.getUserProperty("id"));
                (isBad ? attempts : second).add(m.getReconsumeTimes());
                fails |= isBad || m.getReconsumeTimes() == 0;
                if (!m.getTopic().equals(kit.topic)) attempts.add(-1);
            }
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        start(kit, consumer);
        sent(producer.send(bad.message(kit.topic)), bad.id);
        sent(producer.send(shy.message(kit.topic)), shy.id);
        await("three attempts, there were " + attempts, () -> attempts.size() >= 3);
        await("the second message to be retried", () -> second.size() >= 2);
        ConcurrentLinkedQueue<MessageExt> dead = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer letters = consumer(kit, kit.group + "_DLQ", "%DLQ%" + kit.group);
        letters.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
            dead.addAll(list);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        start(kit, letters);
        await("the dead letter", () -> !dead.isEmpty());
        check(new ArrayList<>(attempts).equals(List.of(0, 1, 2)), "attempts " + attempts);
        check(new ArrayList<>(second).equals(List.of(0, 1)), "attempts of the second " + second);
        check(dead.size() == 1, dead.size() + " dead letters");
        MessageExt letter = dead.peek();
        check(bad.id.equals(letter.getUserProperty("id")), "another message is dead: " + letter);
        check(java.util.Arrays.equals(bad.body, letter.getBody()), "the dead letter has another body");
        check(kit.topic.equals(letter.getProperty("RETRY_TOPIC")), "RETRY_TOPIC " + letter.getProperty("RETRY_TOPIC"));
        return "3 attempts, then dead; another succeeded at its second";
    }

    /** Levels 1 to 3: not early, and once. */
    static String delay(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        Map<String, Long> due = new HashMap<>();
        long[] delays = {1000, 5000, 10_000};
        Map<String, Long> late = new ConcurrentHashMap<>();
        ConcurrentLinkedQueue<String> order = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = consumer(kit, kit.group, kit.topic);
        List<Sample> samples = Sample.range(0, 12, "TagA");
        Sample now = new Sample(99, "TagA");
        sent(producer.send(now.message(kit.topic)), now.id);
        consumer.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
            for (MessageExt m : list) {
                order.add(m.getUserProperty("id"));
                // By the broker's clock, which is that of this machine.
                late.put(m.getUserProperty("id"), m.getStoreTimestamp());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        start(kit, consumer);
        await("the first message", () -> late.containsKey(now.id));
        for (int i = 0; i < samples.size(); i++) {
            Sample s = samples.get(i);
            Message m = s.message(kit.topic);
            m.setDelayTimeLevel(i % 3 + 1);
            due.put(s.id, System.currentTimeMillis() + delays[i % 3]);
            sent(producer.send(m), s.id);
        }
        await("all delayed messages", () -> late.keySet().containsAll(due.keySet()));
        long worst = 0;
        for (Map.Entry<String, Long> e : due.entrySet()) {
            long by = late.get(e.getKey()) - e.getValue();
            check(by >= 0, e.getKey() + " came " + -by + " ms early");
            worst = Math.max(worst, by);
        }
        check(order.size() == samples.size() + 1, order.size() + " deliveries");
        return samples.size() + " messages, the latest stored " + worst + " ms after send and delay";
    }

    /** Each queue in order and by one member at a time, while members come and go; a failure stops its queue only. */
    static String orderly(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        Sample first = new Sample(0, "TagA");
        sent(producer.send(first.message(kit.topic)), first.id);
        List<MessageQueue> queues = kit.queues(producer);
        Map<String, List<Integer>> seen = new ConcurrentHashMap<>();
        Map<String, String> busy = new ConcurrentHashMap<>();
        ConcurrentLinkedQueue<String> trouble = new ConcurrentLinkedQueue<>();
        Set<Integer> failedOnce = ConcurrentHashMap.newKeySet();
        List<Runnable> stops = new ArrayList<>();
        for (int member = 0; member < 2; member++) {
            String name = "member" + member;
            DefaultMQPushConsumer consumer = consumer(kit, kit.group, kit.topic);
            consumer.registerMessageListener((MessageListenerOrderly) (list, context) -> {
                String place = context.getMessageQueue().getBrokerName() + ":" + context.getMessageQueue().getQueueId();
                String other = busy.putIfAbsent(place, name);
                if (other != null) trouble.add(place + " is consumed by " + name + " and " + other);
                try {
                    context.setSuspendCurrentQueueTimeMillis(50);
                    for (MessageExt m : list) {
                        int number = Integer.parseInt(m.getUserProperty("number"));
                        if (number % 17 == 5 && failedOnce.add(number)) return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                        List<Integer> numbers = seen.computeIfAbsent(place, p -> java.util.Collections.synchronizedList(new ArrayList<>()));
                        if (!numbers.contains(number)) numbers.add(number);
                    }
                } finally {
                    busy.remove(place, name);
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
            stops.add(start(kit, consumer));
            int from = 1 + member * 60;
            for (int i = from; i < from + 60; i++) {
                Sample s = new Sample(i, "TagA");
                sent(producer.send(s.message(kit.topic), queues.get(i % queues.size())), s.id);
            }
        }
        // A client keeps the lock of a queue that it has to give up for 20 s when messages of it are unfinished, and
        // the next owner asks again every 20 s.
        await("all messages", 100, () -> seen.values().stream().mapToInt(List::size).sum() >= 121);
        stops.get(0).run();
        for (int i = 121; i < 181; i++) {
            Sample s = new Sample(i, "TagA");
            sent(producer.send(s.message(kit.topic), queues.get(i % queues.size())), s.id);
        }
        await("the rest after a member left", 100, () -> seen.values().stream().mapToInt(List::size).sum() >= 181);
        check(trouble.isEmpty(), String.join("; ", trouble));
        for (Map.Entry<String, List<Integer>> e : seen.entrySet()) {
            List<Integer> sorted = new ArrayList<>(e.getValue());
            java.util.Collections.sort(sorted);
            check(sorted.equals(e.getValue()), e.getKey() + " out of order: " + e.getValue());
        }
        return "181 messages of " + seen.size() + " queues in order, " + failedOnce.size() + " failures";
    }

    /** The enumeration has another package in each line of versions. */
    private static void setBroadcasting(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        Class<?> type = consumer.getMessageModel().getClass();
        for (Object model : type.getEnumConstants()) {
            if (model.toString().equals("BROADCASTING")) {
                DefaultMQPushConsumer.class.getMethod("setMessageModel", type).invoke(consumer, model);
            }
        }
    }

    /** Every member gets every message. */
    static String broadcast(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        Sample first = new Sample(0, "TagA");
        sent(producer.send(first.message(kit.topic)), first.id);
        List<Collector> sinks = new ArrayList<>();
        for (int member = 0; member < 2; member++) {
            Collector sink = new Collector();
            sinks.add(sink);
            DefaultMQPushConsumer consumer = consumer(kit, kit.group, kit.topic);
            setBroadcasting(consumer);
            consumer.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
                list.forEach(sink::add);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            start(kit, consumer);
        }
        List<Sample> samples = Sample.range(0, 60, "TagA");
        kit.sendAll(producer, samples.subList(1, samples.size()));
        for (Collector sink : sinks) {
            Kit.awaitAll(sink, samples);
            sink.exactly(samples);
        }
        return samples.size() + " messages, to each of " + sinks.size() + " members";
    }
}
