// SPDX-License-Identifier: Apache-2.0
package ringmq.compat;

import static ringmq.compat.Kit.await;
import static ringmq.compat.Kit.check;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Half messages: commit, rollback, and both again when the broker asks. */
final class Transactions {
    private Transactions() {}

    static int number(Message m) {
        return Integer.parseInt(m.getUserProperty("number"));
    }

    /** The producer decides two of three by itself, and every third when it is asked. */
    static LocalTransactionState first(int number) {
        switch (number % 3) {
            case 0: return LocalTransactionState.COMMIT_MESSAGE;
            case 1: return LocalTransactionState.ROLLBACK_MESSAGE;
            default: return LocalTransactionState.UNKNOW;
        }
    }

    static LocalTransactionState asked(int number) {
        return number % 2 == 0 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    static String transaction(Kit kit) throws Exception {
        Map<Integer, Integer> checks = new ConcurrentHashMap<>();
        Map<Integer, String> wrong = new ConcurrentHashMap<>();
        List<Sample> samples = Sample.range(0, 30, "TagA");
        TransactionMQProducer producer = new TransactionMQProducer("P" + kit.group);
        producer.setNamesrvAddr(kit.namesrv);
        producer.setInstanceName(kit.nextInstance());
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return first(number(message));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                int number = number(message);
                checks.merge(number, 1, Integer::sum);
                String difference = samples.get(number).difference(message);
                if (difference != null) wrong.put(number, difference);
                if (!message.getTopic().equals(kit.topic)) wrong.put(number, "topic " + message.getTopic());
                return asked(number);
            }
        });
        producer.start();
        kit.onClose(producer::shutdown);
        List<Sample> committed = new ArrayList<>();
        List<Integer> open = new ArrayList<>();
        for (int i = 0; i < samples.size(); i++) {
            Sample s = samples.get(i);
            TransactionSendResult result = producer.sendMessageInTransaction(s.message(kit.topic), null);
            check(result.getSendStatus() == SendStatus.SEND_OK, s.id + ": " + result);
            check(result.getLocalTransactionState() == first(i), s.id + ": " + result);
            boolean isOpen = first(i) == LocalTransactionState.UNKNOW;
            if (isOpen) open.add(i);
            LocalTransactionState last = isOpen ? asked(i) : first(i);
            if (last == LocalTransactionState.COMMIT_MESSAGE) committed.add(s);
        }
        Kit.Push push = kit.push("TagA");
        await("checks of all open ones", () -> checks.keySet().containsAll(open));
        push.awaitAll(committed);
        kit.fence(kit.producer(), push.sink, "TagA");
        push.sink.exactly(committed);
        check(checks.keySet().size() == open.size(), "asked about decided ones: " + checks + ", open were " + open);
        check(wrong.isEmpty(), "a check has another message: " + wrong);
        return committed.size() + " of " + samples.size() + " committed, " + open.size() + " of all after a check";
    }
}
