// SPDX-License-Identifier: Apache-2.0
package ringmq.compat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** What a scenario works with: names, clients that close with it, waits and checks. */
final class Kit implements AutoCloseable {
    private static final long WAIT_SECONDS = Long.parseLong(System.getenv().getOrDefault("RINGMQ_COMPAT_WAIT_SECS", "40"));

    final String namesrv;
    final String topic;
    final String group;
    private final String instance;
    private int sequence;
    private final Deque<Runnable> closers = new ArrayDeque<>();

    Kit(String scenario, String namesrv, String run) {
        // What is about a restart of the broker shares one topic and one group.
        boolean restart = scenario.equals("before_restart") || scenario.equals("after_restart") || scenario.equals("read_again");
        String name = restart ? "broker_restart" : scenario;
        this.namesrv = namesrv;
        this.topic = "compat_java_" + run + "_" + name;
        this.group = "GID_compat_java_" + run + "_" + name;
        this.instance = run + "-" + name + "-" + ProcessHandle.current().pid();
    }

    /** Each client gets an id of its own, as separate processes would have. */
    String nextInstance() {
        return instance + "-" + ++sequence;
    }

    /** Closes at the end of the scenario; may be run before, and then only once. */
    Runnable onClose(Runnable close) {
        boolean[] done = {false};
        Runnable once = () -> {
            if (!done[0]) {
                done[0] = true;
                close.run();
            }
        };
        closers.push(once);
        return once;
    }

    @Override
    public void close() {
        while (!closers.isEmpty()) closers.pop().run();
    }

    DefaultMQProducer producer() throws MQClientException {
        DefaultMQProducer producer = new DefaultMQProducer("P" + group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(nextInstance());
        producer.setPollNameServerInterval(2000);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        onClose(producer::shutdown);
        return producer;
    }

    /** A push consumer with one thread, so that what it hands out first is also committed first. */
    final class Push {
        final Collector sink = new Collector();
        final DefaultMQPushConsumer consumer;
        final Runnable stop;

        Push(String group, MessageSelector selector) throws MQClientException {
            consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(namesrv);
            consumer.setInstanceName(nextInstance());
            consumer.setPollNameServerInterval(2000);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setConsumeThreadMin(1);
            consumer.setConsumeThreadMax(1);
            consumer.setAwaitTerminationMillisWhenShutdown(10_000);
            consumer.subscribe(topic, selector);
            consumer.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
                list.forEach(sink::add);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            stop = onClose(consumer::shutdown);
        }

        /** The queues of the topic that this consumer pulls now. */
        Set<MessageQueue> assigned() {
            Set<MessageQueue> out = new HashSet<>();
            for (MessageQueue q : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
                if (q.getTopic().equals(topic)) out.add(q);
            }
            return out;
        }

        void awaitAssigned(Collection<MessageQueue> queues) throws Exception {
            await("the consumer to hold all " + queues.size() + " queues, it holds " + assigned().size(),
                () -> assigned().containsAll(queues));
        }

        void awaitAll(Collection<Sample> samples) throws Exception {
            Kit.awaitAll(sink, samples);
        }
    }

    Push push(String expression) throws MQClientException {
        return push(MessageSelector.byTag(expression));
    }

    Push push(MessageSelector selector) throws MQClientException {
        return new Push(group, selector);
    }

    static void awaitAll(Collector sink, Collection<Sample> samples) throws Exception {
        try {
            await("messages", () -> sink.missing(samples).isEmpty());
        } catch (IllegalStateException e) {
            List<String> missing = sink.missing(samples);
            throw new IllegalStateException(e.getMessage() + ": " + missing.size() + " of " + samples.size() + " did not arrive: " + some(missing));
        }
    }

    /** The queues of the topic, once the name server knows it. */
    List<MessageQueue> queues(DefaultMQProducer producer) throws Exception {
        List<MessageQueue> out = new ArrayList<>();
        await("the route of " + topic, () -> {
            try {
                out.addAll(producer.fetchPublishMessageQueues(topic));
            } catch (MQClientException e) {
                return false;
            }
            return !out.isEmpty();
        });
        return out;
    }

    List<SendResult> sendAll(DefaultMQProducer producer, Collection<Sample> samples) throws Exception {
        List<SendResult> out = new ArrayList<>();
        for (Sample s : samples) out.add(sent(producer.send(s.message(topic)), s.id));
        return out;
    }

    static SendResult sent(SendResult result, String what) {
        check(result.getSendStatus() == SendStatus.SEND_OK, what + ": " + result);
        check(result.getMsgId() != null && !result.getMsgId().isEmpty(), what + ": no message id");
        check(result.getOffsetMsgId() != null && !result.getOffsetMsgId().isEmpty(), what + ": no offset message id");
        check(result.getQueueOffset() >= 0, what + ": queue offset " + result.getQueueOffset());
        return result;
    }

    /**
     * Sends one marker to each queue and waits until all of them have arrived. A queue is delivered in order, so
     * whatever was to come before the markers has come by then: this is the proof that something does not arrive.
     */
    void fence(DefaultMQProducer producer, Collector sink, String tag) throws Exception {
        String token = nextInstance();
        List<MessageQueue> queues = queues(producer);
        for (MessageQueue q : queues) {
            Message m = new Message(topic, tag, "fence".getBytes(StandardCharsets.UTF_8));
            m.putUserProperty(Collector.FENCE, token);
            m.putUserProperty("place", q.getBrokerName() + ":" + q.getQueueId());
            sent(producer.send(m, q), "fence to " + q);
        }
        await("the fences of all queues", () -> sink.fences(token) == queues.size());
    }

    static void await(String what, Callable<Boolean> condition) throws Exception {
        await(what, WAIT_SECONDS, condition);
    }

    static void await(String what, long seconds, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (!condition.call()) {
            if (System.nanoTime() > end) throw new IllegalStateException("waited " + seconds + " s for " + what);
            Thread.sleep(10);
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new IllegalStateException(what);
    }

    static String some(List<String> list) {
        return list.size() > 5 ? String.join(", ", list.subList(0, 5)) + ", ..." : String.join(", ", list);
    }
}
