// SPDX-License-Identifier: Apache-2.0
package ringmq.compat;

import static ringmq.compat.Kit.await;
import static ringmq.compat.Kit.check;
import static ringmq.compat.Kit.sent;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

@SuppressWarnings("deprecation")
final class Scenarios {
    static final Map<String, Main.Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.put("send_sync", Scenarios::sendSync);
        ALL.put("send_async", Scenarios::sendAsync);
        ALL.put("send_oneway", Scenarios::sendOneway);
        ALL.put("send_batch", Scenarios::sendBatch);
        ALL.put("push_all", kit -> pushFiltered(kit, "*", "TagA", "TagB", "TagC"));
        ALL.put("push_tag", kit -> pushFiltered(kit, "TagA", "TagA"));
        ALL.put("push_tags", kit -> pushFiltered(kit, "TagA || TagB", "TagA", "TagB"));
        ALL.put("rebalance", Scenarios::rebalance);
        ALL.put("restart_consumer", Scenarios::restartConsumer);
        ALL.put("pull", Scenarios::pull);
        ALL.put("pull_lite", Scenarios::pullLite);
        ALL.put("latency_probe", Scenarios::latencyProbe);
        ALL.putAll(Model.ALL);
        ALL.put("sql92", Messaging::sql92);
        ALL.put("request_reply", Messaging::requestReply);
        ALL.put("transaction", Transactions::transaction);
        ALL.put("before_restart", Scenarios::beforeRestart);
        ALL.put("after_restart", Scenarios::afterRestart);
        ALL.put("read_again", Scenarios::readAgain);
        ALL.put("cluster", Scenarios::cluster);
    }

    private static String consumeOnce(Kit kit, DefaultMQProducer producer, List<Sample> samples, List<SendResult> results) throws Exception {
        Kit.Push push = kit.push("*");
        push.awaitAll(samples);
        kit.fence(producer, push.sink, "fence");
        push.sink.exactly(samples);
        for (int i = 0; i < results.size(); i++) {
            SendResult r = results.get(i);
            MessageExt m = push.sink.first(samples.get(i).id);
            check(r.getMsgId().equals(m.getMsgId()), "message id " + m.getMsgId() + ", the send said " + r);
            check(r.getMessageQueue().getQueueId() == m.getQueueId() && r.getMessageQueue().getBrokerName().equals(m.getBrokerName())
                && r.getQueueOffset() == m.getQueueOffset(), "arrived at " + m.getBrokerName() + ":" + m.getQueueId() + ":" + m.getQueueOffset() + ", the send said " + r);
        }
        return samples.size() + " messages, once each";
    }

    static String sendSync(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        List<Sample> samples = Sample.range(0, 100, "TagA");
        return consumeOnce(kit, producer, samples, kit.sendAll(producer, samples));
    }

    static String sendAsync(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        List<Sample> samples = Sample.range(0, 100, "TagA");
        CountDownLatch done = new CountDownLatch(samples.size());
        SendResult[] results = new SendResult[samples.size()];
        ConcurrentLinkedQueue<Throwable> errors = new ConcurrentLinkedQueue<>();
        for (int i = 0; i < samples.size(); i++) {
            final int at = i;
            producer.send(samples.get(i).message(kit.topic), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results[at] = result;
                    done.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    errors.add(e);
                    done.countDown();
                }
            });
        }
        check(done.await(30, TimeUnit.SECONDS), done.getCount() + " sends were not answered");
        check(errors.isEmpty(), errors.size() + " sends failed: " + errors.peek());
        for (int i = 0; i < results.length; i++) sent(results[i], samples.get(i).id);
        return consumeOnce(kit, producer, samples, Arrays.asList(results));
    }

    static String sendOneway(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        List<Sample> samples = Sample.range(0, 100, "TagA");
        for (Sample s : samples) producer.sendOneway(s.message(kit.topic));
        return consumeOnce(kit, producer, samples, List.of());
    }

    static String sendBatch(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        List<Sample> samples = new ArrayList<>();
        for (int[] part : new int[][] {{0, 1}, {1, 20}, {20, 100}}) {
            List<Message> batch = new ArrayList<>();
            for (Sample s : Sample.range(part[0], part[1], "TagA")) {
                samples.add(s);
                batch.add(s.message(kit.topic));
            }
            SendResult r = sent(producer.send(batch), "batch of " + batch.size());
            check(r.getOffsetMsgId().split(",").length == batch.size(), "offset message ids of a batch of " + batch.size() + ": " + r.getOffsetMsgId());
        }
        return consumeOnce(kit, producer, samples, List.of()) + ", in 3 batches";
    }

    /** Half of the messages wait for the consumer, half are sent while it is there. */
    static String pushFiltered(Kit kit, String expression, String... wanted) throws Exception {
        DefaultMQProducer producer = kit.producer();
        List<Sample> first = mixed(0, 60);
        List<Sample> second = mixed(60, 120);
        List<Sample> expected = new ArrayList<>();
        for (List<Sample> part : List.of(first, second)) {
            for (Sample s : part) if (expression.equals("*") || Arrays.asList(wanted).contains(s.tag)) expected.add(s);
        }
        kit.sendAll(producer, first);
        Kit.Push push = kit.push(expression);
        push.awaitAssigned(kit.queues(producer));
        kit.sendAll(producer, second);
        push.awaitAll(expected);
        kit.fence(producer, push.sink, wanted[wanted.length - 1]);
        push.sink.exactly(expected);
        return expected.size() + " of " + (first.size() + second.size()) + " messages";
    }

    private static List<Sample> mixed(int from, int to) {
        String[] tags = {"TagA", "TagB", "TagC", ""};
        List<Sample> out = new ArrayList<>();
        for (int i = from; i < to; i++) out.add(new Sample(i, tags[i % tags.length]));
        return out;
    }

    static String rebalance(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        List<Sample> before = Sample.range(0, 40, "TagA");
        kit.sendAll(producer, before);
        List<MessageQueue> queues = kit.queues(producer);
        Kit.Push one = kit.push("*");
        one.awaitAssigned(queues);
        one.awaitAll(before);
        Kit.Push two = kit.push("*");
        await("both members to have a share", () -> {
            Set<MessageQueue> a = one.assigned();
            Set<MessageQueue> b = two.assigned();
            Set<MessageQueue> all = new HashSet<>(a);
            all.addAll(b);
            return !a.isEmpty() && !b.isEmpty() && a.size() + b.size() == all.size() && all.containsAll(queues);
        });
        String shares = one.assigned().size() + " + " + two.assigned().size() + " queues";

        List<Sample> shared = Sample.range(40, 140, "TagA");
        for (int i = 0; i < shared.size(); i++) {
            sent(producer.send(shared.get(i).message(kit.topic), queues.get(i % queues.size())), shared.get(i).id);
        }
        await("the members to get all together", () -> one.sink.plus(two.sink).missing(shared).isEmpty());
        one.sink.plus(two.sink).only(shared).exactly(shared);
        check(!two.sink.only(shared).missing(shared).isEmpty() && two.sink.only(shared).distinct() > 0, "the second member got " + two.sink.only(shared).distinct());
        check(one.sink.only(shared).distinct() > 0, "the first member got nothing");

        two.stop.run();
        List<Sample> after = Sample.range(140, 240, "TagA");
        for (int i = 0; i < after.size(); i++) {
            sent(producer.send(after.get(i).message(kit.topic), queues.get(i % queues.size())), after.get(i).id);
        }
        one.awaitAll(after);
        one.awaitAssigned(queues);
        kit.fence(producer, one.sink, "fence");
        // What came before the second member may come again to it, when it took over before the first one's commit.
        List<Sample> rest = Sample.range(40, 240, "TagA");
        one.sink.plus(two.sink).only(rest).exactly(rest);
        return shares + ", then " + one.assigned().size();
    }

    static String restartConsumer(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        List<Sample> first = Sample.range(0, 100, "TagA");
        List<Sample> second = Sample.range(100, 150, "TagA");
        kit.sendAll(producer, first);
        Kit.Push push = kit.push("*");
        push.awaitAll(first);
        push.stop.run();
        push.sink.exactly(first);
        kit.sendAll(producer, second);
        Kit.Push again = kit.push("*");
        again.awaitAll(second);
        kit.fence(producer, again.sink, "fence");
        again.sink.exactly(second);
        return first.size() + " before, " + second.size() + " after, nothing again";
    }

    static String beforeRestart(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        List<Sample> consumed = Sample.range(0, 60, "TagA");
        kit.sendAll(producer, consumed);
        Kit.Push push = kit.push("*");
        push.awaitAll(consumed);
        push.stop.run();
        push.sink.exactly(consumed);
        kit.sendAll(producer, Sample.range(60, 100, "TagA"));
        return "sent 100, consumed " + push.sink.distinct();
    }

    static String afterRestart(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        List<Sample> left = Sample.range(60, 100, "TagA");
        Kit.Push push = kit.push("*");
        push.awaitAll(left);
        kit.fence(producer, push.sink, "fence");
        push.sink.exactly(left);
        return "consumed the other " + left.size() + ", nothing again";
    }

    /** A group that is new reads all that there is since before the restart. */
    static String readAgain(Kit kit) throws Exception {
        List<Sample> all = Sample.range(0, 100, "TagA");
        Kit.Push push = kit.new Push(kit.group + "_" + System.getenv("RINGMQ_COMPAT_GROUP"), MessageSelector.byTag("*"));
        push.awaitAll(all);
        kit.fence(kit.producer(), push.sink, "fence");
        push.sink.exactly(all);
        return "all " + all.size();
    }

    /** The pull consumer that names queue and offset itself. */
    static String pull(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        List<Sample> samples = mixed(0, 100);
        List<SendResult> results = kit.sendAll(producer, samples);
        Map<MessageQueue, Long> sent = new HashMap<>();
        results.forEach(r -> sent.merge(r.getMessageQueue(), 1L, Long::sum));

        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(kit.group);
        consumer.setNamesrvAddr(kit.namesrv);
        consumer.setInstanceName(kit.nextInstance());
        consumer.start();
        Runnable stop = kit.onClose(consumer::shutdown);
        Collector sink = new Collector();
        Collector tagged = new Collector();
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(kit.topic);
        check(queues.containsAll(sent.keySet()), "queues " + queues);
        for (MessageQueue q : queues) {
            long min = consumer.minOffset(q);
            long max = consumer.maxOffset(q);
            check(min == 0 && max == sent.getOrDefault(q, 0L), q + ": offsets " + min + " to " + max + ", sent " + sent.get(q));
            long at = min;
            while (at < max) {
                PullResult r = consumer.pull(q, "*", at, 7);
                check(r.getPullStatus() == PullStatus.FOUND, q + " at " + at + ": " + r);
                check(r.getMsgFoundList().size() <= 7, q + ": asked for 7, got " + r.getMsgFoundList().size());
                check(r.getMinOffset() == min && r.getMaxOffset() == max, q + ": " + r);
                for (MessageExt m : r.getMsgFoundList()) {
                    check(m.getQueueOffset() == at++, q + ": offset " + m.getQueueOffset() + " where " + (at - 1) + " was expected");
                    sink.add(m);
                }
                check(r.getNextBeginOffset() == at, q + ": next offset " + r.getNextBeginOffset() + " where " + at + " was expected");
            }
            PullResult end = consumer.pull(q, "*", max, 32);
            check(end.getPullStatus() == PullStatus.NO_NEW_MSG && end.getNextBeginOffset() == max, q + " at its end: " + end);
            PullResult beyond = consumer.pull(q, "*", max + 10, 32);
            check(beyond.getPullStatus() == PullStatus.OFFSET_ILLEGAL && beyond.getNextBeginOffset() == max, q + " beyond its end: " + beyond);
            for (at = min; at < max; ) {
                PullResult r = consumer.pull(q, "TagB", at, 32);
                check(r.getPullStatus() == PullStatus.FOUND || r.getPullStatus() == PullStatus.NO_MATCHED_MSG, q + " by tag: " + r);
                check(r.getNextBeginOffset() > at, q + " by tag: the offset stays at " + at);
                if (r.getMsgFoundList() != null) r.getMsgFoundList().forEach(tagged::add);
                at = r.getNextBeginOffset();
            }
            check(consumer.fetchConsumeOffset(q, true) == -1 || max == 0 || consumer.fetchConsumeOffset(q, true) == 0, q + ": a committed offset of a new group");
            if (max > 0) {
                consumer.getDefaultMQPullConsumerImpl().updateConsumeOffsetToBroker(q, max - 1, false);
                check(consumer.fetchConsumeOffset(q, true) == max - 1, q + ": committed " + (max - 1) + ", reads " + consumer.fetchConsumeOffset(q, true));
            }
        }
        sink.exactly(samples);
        List<Sample> expected = new ArrayList<>();
        for (Sample s : samples) if (s.tag.equals("TagB")) expected.add(s);
        tagged.exactly(expected);

        // A blocking pull is held until a message comes.
        MessageQueue q = queues.iterator().next();
        long max = consumer.maxOffset(q);
        Sample late = new Sample(1000, "TagA");
        PullResult[] held = new PullResult[1];
        Exception[] error = new Exception[1];
        Thread puller = new Thread(() -> {
            try {
                held[0] = consumer.pullBlockIfNotFound(q, "*", max, 32);
            } catch (Exception e) {
                error[0] = e;
            }
        });
        puller.start();
        Thread.sleep(500); // so that it is held by then; the outcome does not depend on it
        sent(producer.send(late.message(kit.topic), q), late.id);
        puller.join(25_000);
        check(held[0] != null && held[0].getPullStatus() == PullStatus.FOUND && held[0].getMsgFoundList().size() == 1,
            "a held pull got " + held[0] + (error[0] == null ? "" : ", " + error[0]));
        check(late.difference(held[0].getMsgFoundList().get(0)) == null, "a held pull got another message");
        stop.run();
        return samples.size() + " messages of " + queues.size() + " queues, a tag, a held pull, offsets";
    }

    private static DefaultLitePullConsumer lite(Kit kit) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(kit.group);
        consumer.setNamesrvAddr(kit.namesrv);
        consumer.setInstanceName(kit.nextInstance());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(kit.topic, "*");
        consumer.start();
        return consumer;
    }

    private static void pollAll(DefaultLitePullConsumer consumer, Collector sink, List<Sample> samples) throws Exception {
        await("the lite pull consumer to get all", () -> {
            consumer.poll(200).forEach(sink::add);
            return sink.missing(samples).isEmpty();
        });
    }

    static String pullLite(Kit kit) throws Exception {
        DefaultMQProducer producer = kit.producer();
        List<Sample> first = Sample.range(0, 100, "TagA");
        List<Sample> second = Sample.range(100, 140, "TagA");
        kit.sendAll(producer, first);
        DefaultLitePullConsumer consumer = lite(kit);
        Runnable stop = kit.onClose(consumer::shutdown);
        Collector sink = new Collector();
        pollAll(consumer, sink, first);
        sink.exactly(first);
        consumer.commitSync();
        stop.run();

        kit.sendAll(producer, second);
        DefaultLitePullConsumer next = lite(kit);
        kit.onClose(next::shutdown);
        Collector again = new Collector();
        pollAll(next, again, second);
        String token = kit.nextInstance();
        List<MessageQueue> queues = kit.queues(producer);
        for (MessageQueue q : queues) {
            Message m = new Message(kit.topic, "fence", "fence".getBytes());
            m.putUserProperty(Collector.FENCE, token);
            m.putUserProperty("place", q.getBrokerName() + ":" + q.getQueueId());
            sent(producer.send(m, q), "fence to " + q);
        }
        await("the fences of all queues", () -> {
            next.poll(200).forEach(again::add);
            return again.fences(token) == queues.size();
        });
        again.exactly(second);
        return first.size() + " messages, and after a restart the next " + second.size() + " only";
    }

    /** One topic on several brokers, of which some are ours and some are not; the runner has created it on all. */
    static String cluster(Kit kit) throws Exception {
        Set<String> brokers = new HashSet<>(Arrays.asList(System.getenv("RINGMQ_COMPAT_BROKERS").split(",")));
        DefaultMQProducer producer = kit.producer();
        await("the route of all brokers", () -> {
            Set<String> known = new HashSet<>();
            for (MessageQueue q : kit.queues(producer)) known.add(q.getBrokerName());
            return known.equals(brokers);
        });
        List<MessageQueue> queues = kit.queues(producer);
        List<Sample> samples = mixed(0, 40 * queues.size());
        List<SendResult> results = new ArrayList<>();
        // Half of them wait for the consumer, half are sent while it is there; some where the client wants, some by name.
        List<Sample> first = samples.subList(0, samples.size() / 2);
        for (int i = 0; i < first.size(); i++) {
            results.add(sent(producer.send(first.get(i).message(kit.topic), queues.get(i % queues.size())), first.get(i).id));
        }
        Kit.Push push = kit.push("*");
        push.awaitAssigned(queues);
        results.addAll(kit.sendAll(producer, samples.subList(first.size(), samples.size())));
        push.awaitAll(samples);
        kit.fence(producer, push.sink, "fence");
        push.sink.exactly(samples);
        Map<String, Integer> shares = new java.util.TreeMap<>();
        for (int i = 0; i < results.size(); i++) {
            MessageExt m = push.sink.first(samples.get(i).id);
            check(m.getBrokerName().equals(results.get(i).getMessageQueue().getBrokerName()), samples.get(i).id + " came from " + m.getBrokerName());
            shares.merge(m.getBrokerName(), 1, Integer::sum);
        }
        check(shares.keySet().equals(brokers), "messages came from " + shares.keySet());
        push.stop.run();

        Kit.Push tagged = kit.new Push(kit.group + "_tag", MessageSelector.byTag("TagB"));
        List<Sample> wanted = new ArrayList<>();
        for (Sample s : samples) if (s.tag.equals("TagB")) wanted.add(s);
        tagged.awaitAll(wanted);
        kit.fence(producer, tagged.sink, "TagB");
        tagged.sink.exactly(wanted);
        return samples.size() + " messages: " + shares;
    }

    static String latencyProbe(Kit kit) throws Exception {
        int rounds = 20;
        DefaultMQProducer producer = kit.producer();
        List<Sample> warm = Sample.range(0, 40, "TagA");
        kit.sendAll(producer, warm);
        Kit.Push push = kit.push("*");
        push.awaitAssigned(kit.queues(producer));
        push.awaitAll(warm);
        List<Double> millis = new ArrayList<>();
        for (int i = 0; i < rounds; i++) {
            Thread.sleep(100); // leaves the consumer time to be parked again
            Sample s = new Sample(1000 + 5 * i, "TagA");
            long begin = System.nanoTime();
            producer.send(s.message(kit.topic));
            long limit = begin + TimeUnit.SECONDS.toNanos(4);
            while (push.sink.first(s.id) == null) {
                check(System.nanoTime() < limit, "message " + i + " had not arrived after 4 s");
                LockSupport.parkNanos(50_000);
            }
            millis.add((System.nanoTime() - begin) / 1e6);
        }
        millis.sort(null);
        return String.format("send to receipt: median %.2f ms, 90 %% %.2f ms, worst %.2f ms", millis.get(rounds / 2), millis.get(rounds * 9 / 10), millis.get(rounds - 1));
    }

    private Scenarios() {}
}
